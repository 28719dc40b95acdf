"""The dashboard: shows jobs, their history, workers and nodes in a browser. It reads; where it is told so, it passes a user's wishes on."""
