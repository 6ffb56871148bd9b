"""Runs inside a workload and executes the user's code for the agent.

It is started by path (`python -I .../runner/runner_main.py`), never imported by the other rooms; it uses the standard
library only and runs on Python 3.8 and newer. The protocol that it speaks is described in
`docs/reference/runner-protocol.md`.
"""
