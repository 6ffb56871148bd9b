"""Builds the manager from services, stores, loops and the HTTP application."""
