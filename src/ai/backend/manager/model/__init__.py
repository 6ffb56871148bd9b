"""Frozen views and requests of the manager. No ORM, no IO."""
