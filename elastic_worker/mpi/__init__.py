"""What MPI launchers need: a `kubectl` that knows `exec`."""
