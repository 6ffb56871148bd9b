"""Elects the manager that runs the loops."""
