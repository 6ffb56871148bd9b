"""Runs plugins that may block or crash in processes of their own.

``python -m ai.backend.pluginhost`` is the zygote (:mod:`.zygote`, asked by :mod:`.forking`): it forks a host, which
imports one plugin and serves its calls on an inherited socket (:mod:`.server`). :class:`HostedPlugin` is the same
plugin as the agent sees it (:mod:`.proxy`, over :mod:`.process`).
"""

from ai.backend.pluginhost.external_alloc_map import Allocate, ExternalAllocMap, allocator
from ai.backend.pluginhost.proxy import HostedPlugin, launch

__all__ = ["Allocate", "ExternalAllocMap", "HostedPlugin", "allocator", "launch"]
