"""Artifacts: registries, scans, imports, who may do what, and how sessions mount them (spec 03-17)."""
