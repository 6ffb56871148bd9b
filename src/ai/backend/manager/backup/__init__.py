"""Backs up and restores an installation: its database, shared configuration and keys, in one file."""
