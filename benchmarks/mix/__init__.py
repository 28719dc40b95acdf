"""The parts of benchmarks/cluster_mix.py, and of benchmarks/pollux.py."""
