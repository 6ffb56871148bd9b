"""Manages artifacts: their registries, scans, imports, uploads, and mounts in sessions."""
