"""The parts of benchmarks/cluster_mix.py."""
