"""The dashboard shows jobs, their history, workers and nodes in a browser. If that is enabled, users can also change jobs with it."""
