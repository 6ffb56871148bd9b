"""Decisions of model serving: roll-outs, autoscaling, routing, limits, usage. Pure."""
