"""Encrypts secrets in the database and in the shared configuration."""
