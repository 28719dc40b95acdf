"""Warm start: torchrun's workers are forked from a server that has torch imported. Otherwise they are like plainly started workers.

`launch` runs before torchrun's agent and starts `server` beside it. torchrun starts `stub` instead of a Python interpreter (torchrun's
variable PYTHON_EXEC). The stub passes everything to the server and represents the worker until it ends. `differences` finds what a warm
worker would not share with a plain one; if there is anything, the stub starts the worker plainly.

`begin` has no server: it makes the imports of a Horovod worker's own program quicker (`collector`).
"""
