"""Plugins, inventory, health, operations."""
