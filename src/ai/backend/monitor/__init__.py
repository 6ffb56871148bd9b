"""Monitors: services that daemons report errors and figures to."""
