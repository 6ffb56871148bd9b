"""The Kubernetes runtime: a workload is a pod on a node that the manager has chosen."""
