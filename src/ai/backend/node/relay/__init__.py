"""Runs the relay, a process between a workload's runner and its agent (docs/reference/runner-protocol).

Shims import it, and containers start it by path: the standard library alone, Python 3.8, relative imports.
"""
