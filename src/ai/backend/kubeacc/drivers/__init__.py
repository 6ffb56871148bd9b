"""Drivers that act on devices: of the node itself by its accelerator plugins, and of an IaaS."""
