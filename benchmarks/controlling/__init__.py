"""Parts of benchmarks/controller.py: the stand-in for kubelets, the controller's process, and one measurement."""
