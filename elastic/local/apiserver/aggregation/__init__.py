"""API services: groups of the API that a server of its own serves, reached through this one."""
