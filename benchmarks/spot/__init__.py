"""The parts of benchmarks/spot_replay.py."""
