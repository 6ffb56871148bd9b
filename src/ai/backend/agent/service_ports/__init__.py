"""Manages services inside sessions, and connects to their ports."""
