"""Runs of user code inside a kernel."""
