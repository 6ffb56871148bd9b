"""Connects the agent with a runner, and serves the runner's runs, files and terminals."""
