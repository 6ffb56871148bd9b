"""Migrations of the coordinator."""
