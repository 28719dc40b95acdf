"""`elastic dashboard`: a link to the laptop's dashboard, or a way to that of a cluster."""
