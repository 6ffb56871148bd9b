"""What the runtimes that start workloads on the agent's own machine share: control groups, homes, the runner's copy.

This package's root imports nothing: the processes of supervisors load their modules through it and must stay small.
"""
