"""Agents indexed by what they have free."""
