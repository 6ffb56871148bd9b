"""The agent: holds the devices and workloads of one node, does what the manager commands and reports what it sees."""
