"""The watcher."""
