"""The process runtime: workloads as process trees of this host (docs/reference/process-runtime-tiers).

This file imports nothing: the supervisor's processes load their modules through it and must stay small.
"""
