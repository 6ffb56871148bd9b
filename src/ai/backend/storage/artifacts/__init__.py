"""Fetches artifacts from registries, verifies and archives them (spec 03-17; docs/reference/artifact-proxy-api.md)."""
