"""Endpoints of model services."""
