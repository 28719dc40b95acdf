"""The state of one job as values: the job (job), and its parts."""
