"""The node agent: pods of one node as processes in sandboxes, and what it reports about them to the API server."""
