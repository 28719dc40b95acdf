"""Parts of benchmarks.reform: other ways to go on after a loss, and the transfer of a large state."""
