"""Runs accelerator plugins, and manages the inventory of devices, their health, and operations on them."""
