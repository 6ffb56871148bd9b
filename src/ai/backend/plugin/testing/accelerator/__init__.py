"""Provides the conformance suite of accelerator plugins, its checks, and the skeleton of a new plugin."""
