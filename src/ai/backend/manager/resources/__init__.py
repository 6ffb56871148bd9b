"""Presets, variants, quotas: what can be asked for."""
