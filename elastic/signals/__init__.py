"""Know the signals with which clusters and clouds announce that a worker must go: the table, added rows, and seen signals."""
