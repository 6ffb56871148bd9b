"""Manages container images and the registries that they come from."""
