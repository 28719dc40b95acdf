"""Warm start: torchrun's workers come from a fork server that has torch imported already, and are otherwise as if started plainly.

`launch` is run before torchrun's agent and starts `server` beside it. torchrun starts `stub` in place of a Python interpreter (its
environment variable PYTHON_EXEC); the stub hands everything over and stands in for the worker until it ends. `likeness` says where a
warm worker would differ from a plain one; whenever it says anything, the stub becomes a plain start.
"""
