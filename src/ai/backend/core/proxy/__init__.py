"""Decisions of app proxy workers: routes, draining, permits, hosts and headers. Pure."""
