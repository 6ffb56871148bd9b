"""Defines the topics of the manager's message bus."""

from __future__ import annotations

OUTBOX = "manager.outbox"
"""Bus topic: events were written."""

SCHEDULE = "manager.schedule"
"""Bus topic: sessions may be placed now."""

LAUNCH = "manager.launch"
"""Bus topic, payload session id or None for any: kernels are to be created or restarted."""

TERMINATE = "manager.terminate"
"""Bus topic, payload session id or DestroyKernels: kernels are to be ended."""

CLAIM = "manager.claim"
"""Bus topic: device claims or sessions that name them were changed."""

ARRAY = "manager.array"
"""Bus topic: elements of arrays may be released."""

AGENTS = "manager.agents"
"""Bus topic: an agent has registered, was lost or was changed."""

SERVING = "manager.serving"
"""Bus topic: endpoints of model services were changed."""

CALLBACK = "manager.callback"
"""Bus topic: a webhook is to be sent."""
