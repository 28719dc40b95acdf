"""Prepare a pod before the user's command runs: two init containers and one check by the wrapper.

Each module imports no other one: commands in pods run it by its path or name, some with interpreters that are too old for the rest.
"""
