"""Carries streams over separate TLS or unix socket connections."""
