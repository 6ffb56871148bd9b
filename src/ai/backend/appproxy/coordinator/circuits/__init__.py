"""Manages circuits, which connect slots of workers with services of sessions."""
