"""Runs a shard: one process that acts as the agent of each of many nodes of a Kubernetes cluster."""
