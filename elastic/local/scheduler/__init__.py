"""Decide to which node a pod goes (place.py and preempt.py, which are pure), and tell the API server (loop.py)."""
