"""Settings of the coordinator."""
