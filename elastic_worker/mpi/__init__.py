"""Give MPI launchers a `kubectl` that knows `exec`."""
