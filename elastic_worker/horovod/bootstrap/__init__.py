"""The folder that comes first on the PYTHONPATH of workers. It holds nothing but `sitecustomize`."""
