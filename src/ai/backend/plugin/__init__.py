"""Defines public, versioned interfaces for third parties. ``testing`` contains their conformance suites."""
