"""Statistics of node, devices, workloads."""
