"""`elastic install` and `elastic uninstall`: the control plane in a cluster, made from the objects of deploy/."""
