"""Checks and merges the metric families that agents report, for the manager's Prometheus endpoint."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence

from ai.backend.common.ids import AgentId
from ai.backend.common.wire.reports import MetricFamily, MetricSample

log = logging.getLogger(__name__)

SAMPLES_LIMIT = 10_000
"""The maximum number of samples of one agent; some hundreds of devices with dozens of metrics fit."""
_NAME_PATTERN = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,199}")
_RESERVED_NAMES = re.compile(r"(backendai_manager|process|python|scrape)_.*|up|ALERTS.*")
"""Names of the manager's own metrics, and names that Prometheus and its clients use."""
_METRIC_KINDS = ("gauge", "counter", "unknown")
_KNOWN_LABELS = {"device_name", "device_id", "index", "gpu", "UUID"}
_MAX_LABEL_LENGTH = 256


def check_families(agent_id: AgentId, families: Sequence[MetricFamily]) -> list[MetricFamily]:
    """Returns the valid metric families and samples that an agent has reported, each sample with the label ``agent``.

    Valid are names that are not reserved, known labels, finite values, no duplicates, at most SAMPLES_LIMIT samples.
    """
    valid_families: list[MetricFamily] = []
    remaining_count = SAMPLES_LIMIT
    for family in families:
        if (
            not _NAME_PATTERN.fullmatch(family.name)
            or _RESERVED_NAMES.fullmatch(family.name)
            or family.kind not in _METRIC_KINDS
        ):
            continue
        if (family.kind == "counter") != family.name.endswith("_total"):
            continue
        samples: dict[tuple[tuple[str, str], ...], MetricSample] = {}
        for sample in family.samples:
            has_short_labels = all(len(value) <= _MAX_LABEL_LENGTH for value in sample.labels.values())
            if has_short_labels and sample.labels.keys() <= _KNOWN_LABELS and math.isfinite(sample.value):
                key = tuple(sorted(sample.labels.items()))
                labels = {"agent": str(agent_id), **sample.labels}
                samples.setdefault(key, MetricSample(labels=labels, value=sample.value))
        accepted_samples = list(samples.values())[:remaining_count]
        remaining_count -= len(accepted_samples)
        if accepted_samples:
            valid_families.append(
                MetricFamily(name=family.name, kind=family.kind, help=family.help[:500], samples=accepted_samples)
            )
    if remaining_count == 0:
        log.warning("the agent %s reports more than %d samples; the rest is dropped", agent_id, SAMPLES_LIMIT)
    return valid_families


def merge_families(agent_families: Mapping[AgentId, Sequence[MetricFamily]]) -> list[MetricFamily]:
    """Merges the metric families of several agents that have the same name.

    Families whose kind differs from the kind of the first family of their name are dropped.
    """
    merged_families: dict[str, MetricFamily] = {}
    for families in agent_families.values():
        for family in families:
            merged_family = merged_families.setdefault(
                family.name, MetricFamily(name=family.name, kind=family.kind, help=family.help, samples=[])
            )
            if merged_family.kind == family.kind:
                merged_family.samples.extend(family.samples)
    return list(merged_families.values())
