"""API services: groups of the API that another server serves, and that clients reach through this one."""
