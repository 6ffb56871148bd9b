"""Stores the audit trail, and the errors that clients report."""
