"""Decisions: what the platform does, as pure functions over frozen data. No IO, no clock, no randomness, no logging."""
