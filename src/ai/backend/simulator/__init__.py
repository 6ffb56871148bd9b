"""The core on snapshots and in simulated time."""
