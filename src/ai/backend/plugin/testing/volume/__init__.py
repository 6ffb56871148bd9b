"""Provides the conformance suite of volumes, and a model of their trees."""
