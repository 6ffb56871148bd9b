"""Implements `backend.ai up`: the whole platform in one process or in one process per daemon, on one data directory."""
