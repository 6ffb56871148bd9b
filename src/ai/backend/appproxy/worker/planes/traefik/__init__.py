"""Implements the data plane on Traefik."""
