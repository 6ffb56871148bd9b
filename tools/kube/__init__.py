"""Builds a Kubernetes cluster from Go modules, and runs it in namespaces of its own, for tests and benchmarks."""
