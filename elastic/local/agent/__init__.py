"""The node agent: pods of one node as processes in sandboxes, and what the API server is told of them."""
