"""Implements kube-acc, one framework for the accelerators of a Kubernetes cluster (spec 02)."""
