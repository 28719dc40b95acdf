"""Decide from facts alone which hosts a job's launcher may use now. No clock, no I/O, no randomness."""
