"""Backups of an installation: its database, shared configuration and keys in one file, and their restoration."""
