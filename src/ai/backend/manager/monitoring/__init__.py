"""Serves monitoring systems and administrators: targets, the state of the installation, reports on sessions."""
