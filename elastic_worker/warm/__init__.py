"""Start torchrun's workers warm: a server that has torch imported forks them. Otherwise they are like plainly started workers.

`launch` runs before torchrun's agent and starts `server` next to it. torchrun starts `stub` instead of a Python interpreter (torchrun's
variable PYTHON_EXEC). The stub passes everything to the server and represents the worker until it ends. `differences` finds differences
between a warm worker and a plain one; if there are any, the stub starts the worker plainly.

`begin` needs no server: it makes the imports of a Horovod worker's own program faster (`collector`).
"""
