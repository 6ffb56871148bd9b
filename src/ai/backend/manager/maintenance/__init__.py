"""Deletes old rows and re-encrypts secrets in the database."""
