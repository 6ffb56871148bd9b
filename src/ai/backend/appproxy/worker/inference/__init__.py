"""Endpoints of model services as a worker serves them: replicas, waiting requests, limits, usage."""
