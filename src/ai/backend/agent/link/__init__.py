"""The agent's side of the link: commands, heartbeat, statistics."""
