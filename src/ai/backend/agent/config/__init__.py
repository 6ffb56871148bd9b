"""Settings of the agent (``agent.toml``)."""
