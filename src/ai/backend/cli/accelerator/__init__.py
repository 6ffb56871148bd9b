"""Commands on accelerator plugins and devices of this node."""
