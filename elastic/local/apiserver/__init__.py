"""The laptop cluster's API server: a small Kubernetes-compatible server over HTTPS, one process, one embedded database."""
