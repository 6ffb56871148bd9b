"""Computes the subnets of sessions, and makes overlay networks between nodes."""
