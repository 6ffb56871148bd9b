"""Which device holds how much of each slot: exact, pure, the same code for the planner and for the agent."""
