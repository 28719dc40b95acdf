"""Describe jobs to people, and make a job from a script, for the command line and `elastic.Client`."""
