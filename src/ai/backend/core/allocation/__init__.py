"""Allocates devices by slots: exact and pure, the same code for the scheduler and the agent."""
