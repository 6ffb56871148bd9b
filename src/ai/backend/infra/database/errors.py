"""Texts of errors that both kinds of databases raise."""

from __future__ import annotations

DISK_FULL = "The disk of the database is full: free some room there. What was not acknowledged is not stored."
