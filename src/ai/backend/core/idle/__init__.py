"""Decides if a session is idle: rules, a window of measurements, a verdict. Pure."""
