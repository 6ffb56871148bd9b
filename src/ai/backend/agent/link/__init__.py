"""Implements the agent's side of the link to the managers: commands, heartbeats and statistics."""
