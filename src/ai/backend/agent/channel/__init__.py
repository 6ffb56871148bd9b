"""The runner's channel: runs, files, terminals."""
