"""The session aggregate."""
