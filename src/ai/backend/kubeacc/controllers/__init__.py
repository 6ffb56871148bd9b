"""The controllers of kube-acc: they decide about devices and operations, and let executors act."""
