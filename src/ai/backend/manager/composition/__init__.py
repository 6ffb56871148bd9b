"""Builds the manager: services, stores, loops and HTTP application."""
