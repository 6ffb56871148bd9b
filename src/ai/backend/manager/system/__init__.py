"""Manages the status of the installation, the announcement and the shared configuration."""
