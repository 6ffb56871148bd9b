"""Implements drivers that act on devices: through accelerator plugins of the node, or through an IaaS."""
