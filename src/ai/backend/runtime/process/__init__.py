"""The process runtime: workloads as process trees of this host (docs/reference/process-runtime-tiers).

This package's root imports nothing: the supervisor's processes load their modules through it and must stay small.
The runtime itself is :class:`ai.backend.runtime.process.runtime.ProcessRuntime`.
"""
