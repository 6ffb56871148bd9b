"""Sesstpl, dotfile."""
