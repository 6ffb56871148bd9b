"""Reads container registries: Docker's own (the OCI distribution API) and Harbor 2."""
