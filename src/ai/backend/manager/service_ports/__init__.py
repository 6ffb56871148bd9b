"""Starts services of sessions, and opens tunnels to services."""
