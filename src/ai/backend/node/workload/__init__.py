"""Directories, statistics, mounts and channel of one workload."""
