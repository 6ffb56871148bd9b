"""Artifact."""
