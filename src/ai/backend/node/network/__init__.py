"""Overlay networks and the subnets of sessions."""
