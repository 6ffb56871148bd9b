"""Artifacts: their registries, scans, imports, uploads, and mounts in sessions."""
