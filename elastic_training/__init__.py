"""Hold the packages controller, rendezvous, autoscale and dashboard under one name, which collides with no package of a user.

In the repository they are links to the top-level folders. A wheel has the folders themselves.
"""
