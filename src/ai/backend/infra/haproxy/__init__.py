"""Finds, runs and commands HAProxy: for the data plane of the app proxy, and for the service gateway of agents."""
