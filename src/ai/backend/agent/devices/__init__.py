"""Accelerator plugins, the inventory of devices, their health, and operations on them."""
