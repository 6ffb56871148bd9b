"""Finds, runs and commands HAProxy for the app proxy's data plane and for the service gateway of agents."""
