"""What the agent is asked: the manager's commands."""
