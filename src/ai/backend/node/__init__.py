"""Contains Linux support that agents and runtimes share: control groups, networks, workloads, and the relay.

This package's root imports nothing: the processes of supervisors load their modules through it and must stay small.
"""
