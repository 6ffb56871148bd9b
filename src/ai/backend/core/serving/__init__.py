"""Decides for model serving about roll-outs, autoscaling, routing, limits and usage. Pure."""
