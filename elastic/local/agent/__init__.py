"""The node agent runs the pods of one node as processes in sandboxes, and reports about them to the API server."""
