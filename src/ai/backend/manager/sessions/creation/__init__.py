"""Builds sessions from requests."""
