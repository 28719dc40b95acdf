"""The commands about jobs, on the laptop cluster and on any other: what they ask the API for, what they change, and what they print."""
