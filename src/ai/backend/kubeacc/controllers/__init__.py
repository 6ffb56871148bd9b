"""Implements the controllers of kube-acc, which decide about devices and operations and let executors act."""
