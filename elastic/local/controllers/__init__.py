"""The controllers of the laptop cluster: each watches a few kinds, and does one thing that the API server leaves to others."""
