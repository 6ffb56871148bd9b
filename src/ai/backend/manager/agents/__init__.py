"""Registers agents and manages their devices, slots and watchers."""
