"""Describes the resources that users can request: presets, variants of devices, quotas."""
