"""Simulates scheduling on snapshots, and whole managers and agents in simulated time."""
