"""Provides the conformance suite of runtimes, and a runtime in memory."""
