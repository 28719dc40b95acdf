"""For people who look at jobs and make them: what the command line and `elastic.Client` say about a job, and the job made of a script."""
