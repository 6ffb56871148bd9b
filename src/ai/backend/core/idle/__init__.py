"""Decides if a session is idle, from rules and a window of measurements. Pure."""
