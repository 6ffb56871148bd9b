"""Use cases of the agent."""
