"""Manages endpoints of model services."""
