"""Model services: endpoints, their revisions and replicas."""
