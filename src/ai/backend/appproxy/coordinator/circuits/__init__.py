"""Circuits: connections of slots of workers with services of sessions."""
