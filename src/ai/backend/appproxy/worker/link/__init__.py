"""Links a worker with its coordinator, and keeps the worker's circuits on disk."""
