"""The places in the life of a kernel at which a kill test may end the agent, see ``plugin.crash_points``.

``KERNEL_CRASH_POINTS`` lists those of every kernel, in the order in which it passes them. Around each call of a
plugin's hook there are two more, ``hook.<plugin>.<method>.before`` and ``.after``.
"""

from __future__ import annotations

CREATE_STEPS = ("devices", "hooks", "network", "workload", "channel", "bootstrap", "post-create")
"""Names of the creation's steps in order; a destruction releases them in reverse."""

KERNEL_CRASH_POINTS: tuple[str, ...] = (
    "create.accept.before",
    "create.accept.after",
    *(f"create.{step}.{when}" for step in CREATE_STEPS for when in ("before", "after")),
    "create.running.before",
    "create.running.after",
    "restart.accept.after",
    "restart.released",
    "destroy.accept.before",
    "destroy.accept.after",
    *(f"destroy.{step}.{when}" for step in reversed(CREATE_STEPS) for when in ("before", "after")),
    "destroy.terminated.before",
    "destroy.terminated.after",
)
IMAGE_CRASH_POINTS = ("create.image.before", "create.image.after")
"""What a kernel passes whose image must be pulled."""
CRASH_POINTS = (*KERNEL_CRASH_POINTS, *IMAGE_CRASH_POINTS)
