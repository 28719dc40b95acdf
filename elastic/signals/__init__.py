"""Signals by which clusters and clouds announce that a worker must go: the table, rows added by configuration, and what of it is seen."""
