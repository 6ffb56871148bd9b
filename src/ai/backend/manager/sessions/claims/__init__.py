"""Manages device claims, whose devices stay allocated to an owner between the owner's sessions."""
