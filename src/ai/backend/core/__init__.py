"""Decides what the platform does, in pure functions over frozen data. No IO, no clock, no randomness, no logging."""
