"""Artifacts: fetched from registries, verified, archived (spec 03-17; docs/reference/artifact-proxy-api.md)."""
