"""Implements the manager daemon, which owns sessions and kernels, serves the API, and commands the agents."""
