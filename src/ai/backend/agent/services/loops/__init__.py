"""Loops: one file each, level-triggered, each survives its own errors."""
