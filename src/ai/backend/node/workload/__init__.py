"""Directories, files, mounts, statistics and connections of one workload."""
