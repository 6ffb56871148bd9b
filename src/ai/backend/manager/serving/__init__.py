"""Manages model services: endpoints with their revisions and replicas."""
