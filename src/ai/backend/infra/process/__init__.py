"""Runs a daemon as a process: signals, pid file, workers, memory."""
