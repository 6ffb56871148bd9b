"""Measures the node, its devices and its workloads."""
