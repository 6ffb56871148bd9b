"""Runs the workloads of one node for the manager, manages the node's devices, and reports both."""
