"""Which hosts a job's launcher may use now, decided from facts alone. No clock, no I/O, no randomness."""
