"""Passes requests of logged-in users on to a manager."""
