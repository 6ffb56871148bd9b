"""Runs the watcher, an HTTP server that starts and stops the agent on request."""
