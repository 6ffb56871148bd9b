"""Overlay networks, subnets."""
