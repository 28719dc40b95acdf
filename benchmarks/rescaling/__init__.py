"""The parts of benchmarks/rescale.py."""
