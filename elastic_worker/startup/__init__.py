"""Runs in a pod before the user's command: two init containers and one check by the wrapper.

Each module stands alone: commands in pods run it by its path or its name, some with interpreters that are too old for the rest.
"""
