"""The link of a worker with its coordinator, and the circuits that it keeps on disk."""
