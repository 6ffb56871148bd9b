"""Frozen records of the agent."""
