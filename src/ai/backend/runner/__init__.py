"""Runs inside a workload, by path, and executes the user's code for the agent (docs/reference/runner-protocol.md).

Standard library only, Python 3.8 and newer; never imported by other packages.
"""
