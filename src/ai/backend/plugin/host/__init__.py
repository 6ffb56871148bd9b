"""A process of its own for a plugin that may block or crash.

``python -m ai.backend.plugin.host`` is the zygote (:mod:`.zygote`, asked by :mod:`.forking`): it forks a host, which
imports one plugin and serves its calls on an inherited socket (:mod:`.server`). :class:`HostedPlugin` is the same
plugin as the agent sees it (:mod:`.proxy`, over :mod:`.process`).
"""

from ai.backend.plugin.host.choosing import Choose, chooser
from ai.backend.plugin.host.chosen_map import ChosenAllocMap
from ai.backend.plugin.host.proxy import HostedPlugin, launch
from ai.backend.plugin.host.schema import BadAnswer, settled

__all__ = ["BadAnswer", "Choose", "ChosenAllocMap", "HostedPlugin", "chooser", "launch", "settled"]
