"""Requests of logged-in users, passed on to a manager."""
