"""Runs plugins that may block or crash in processes of their own.

``python -m ai.backend.pluginhost`` is the zygote (:mod:`.zygote`), which forks a host on request of :mod:`.fork`; a
host imports one plugin and serves its calls on an inherited socket (:mod:`.server`). The agent sees
:class:`HostedPlugin`.
"""

from ai.backend.pluginhost.external_alloc_map import Allocate, ExternalAllocMap, allocator
from ai.backend.pluginhost.proxy import HostedPlugin, launch

__all__ = ["Allocate", "ExternalAllocMap", "HostedPlugin", "allocator", "launch"]
