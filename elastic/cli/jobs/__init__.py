"""The commands about jobs, for the laptop cluster and any other cluster."""
