"""What the machine knows about one job, as values: the job (job), and its four parts."""
