"""Runs in torchrun's agent: waits at the barrier, enters worlds, watches the worker processes, and reports to the rendezvous server."""
