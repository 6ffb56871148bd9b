"""Tells users which resources they can request: presets, variants of devices, quotas."""
