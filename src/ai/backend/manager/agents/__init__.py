"""Agents, their capabilities, devices and slots; watcher."""
