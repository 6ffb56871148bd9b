"""Serves endpoints of model services at a worker: replicas, waiting requests, limits, usage."""
