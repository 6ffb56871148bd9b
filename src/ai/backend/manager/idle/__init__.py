"""Idle checks."""
