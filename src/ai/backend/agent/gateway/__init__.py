"""Serves the service gateway, whose routes lead app proxies to services of sessions."""
