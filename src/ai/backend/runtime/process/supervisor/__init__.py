"""Runs the processes that outlive the agent: a zygote and, forked from it, one shim for each workload.

Uses the standard library only.
"""
