"""Handles the directories, files, mounts, statistics and connections of one workload."""
