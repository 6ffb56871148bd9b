"""Decides for app proxy workers about routes, draining, permits, hosts and headers. Pure."""
