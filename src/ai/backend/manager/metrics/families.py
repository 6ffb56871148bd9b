"""What agents tell for Prometheus, as the manager shows it: checked, merged by name, gone soon after the agent is."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence

from ai.backend.common.ids import AgentId
from ai.backend.common.wire.reports import MetricFamily, MetricSample

log = logging.getLogger(__name__)

SAMPLES_LIMIT = 10_000
"""Of one agent: some hundreds of devices with dozens of metrics."""
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,199}")
_TAKEN = re.compile(r"(backendai_manager|process|python|scrape)_.*|up|ALERTS.*")
"""Names that are ours, and those that Prometheus and its clients give."""
_KINDS = ("gauge", "counter", "unknown")
_LABELS = {"device_name", "device_id", "index", "gpu", "UUID"}
_LABEL_LIMIT = 256


def check_families(agent_id: AgentId, families: Sequence[MetricFamily]) -> list[MetricFamily]:
    """Those parts that may be shown, with the label ``agent``: an agent must not spoil what others told.

    Names are valid and not taken, labels are of a fixed set, values are finite, the same labels come once, and there
    are at most SAMPLES_LIMIT samples.
    """
    shown: list[MetricFamily] = []
    left = SAMPLES_LIMIT
    for family in families:
        if not _NAME.fullmatch(family.name) or _TAKEN.fullmatch(family.name) or family.kind not in _KINDS:
            continue
        if (family.kind == "counter") != family.name.endswith("_total"):
            continue
        samples: dict[tuple[tuple[str, str], ...], MetricSample] = {}
        for sample in family.samples:
            short = all(len(value) <= _LABEL_LIMIT for value in sample.labels.values())
            if short and sample.labels.keys() <= _LABELS and math.isfinite(sample.value):
                place = tuple(sorted(sample.labels.items()))
                labels = {"agent": str(agent_id), **sample.labels}
                samples.setdefault(place, MetricSample(labels=labels, value=sample.value))
        kept = list(samples.values())[:left]
        left -= len(kept)
        if kept:
            shown.append(MetricFamily(name=family.name, kind=family.kind, help=family.help[:500], samples=kept))
    if left == 0:
        log.warning("the agent %s tells more than %d samples; the rest is left out", agent_id, SAMPLES_LIMIT)
    return shown


def merge_families(of_agents: Mapping[AgentId, Sequence[MetricFamily]]) -> list[MetricFamily]:
    """One family for each name. Where agents differ in its kind, the first one is believed."""
    merged: dict[str, MetricFamily] = {}
    for families in of_agents.values():
        for family in families:
            known = merged.setdefault(
                family.name, MetricFamily(name=family.name, kind=family.kind, help=family.help, samples=[])
            )
            if known.kind == family.kind:
                known.samples.extend(family.samples)
    return list(merged.values())
