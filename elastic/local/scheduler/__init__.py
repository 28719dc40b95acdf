"""Decides which node a pod goes to (place.py, preempt.py: pure) and says so to the API server (loop.py)."""
