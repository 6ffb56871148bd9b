"""Which images there are, and which one a user means. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ai.backend.common.errors import ImageNotFound
from ai.backend.common.states import AgentStatus
from ai.backend.manager.model.cluster import Agent, Image

_ARCHITECTURES = {"amd64": "x86_64", "x86-64": "x86_64", "arm64": "aarch64"}


def architecture_name(name: str) -> str:
    """The canonical name of a processor architecture."""
    lowered = name.strip().lower()
    return _ARCHITECTURES.get(lowered, lowered)


def merge_images(agents: Iterable[Agent]) -> list[Image]:
    """What the agents offer, one entry for each name and architecture, in the order of first mention."""
    merged: dict[tuple[str, str], Image] = {}
    for agent in agents:
        if agent.status is AgentStatus.TERMINATED:
            continue
        for report in agent.images:
            key = report.name, architecture_name(report.architecture)
            known = merged.get(key)
            if known is None:
                merged[key] = Image(
                    name=report.name,
                    architecture=key[1],
                    digest=report.digest,
                    size_bytes=report.size_bytes,
                    labels=report.labels,
                    aliases=tuple(report.aliases),
                    agents=(agent.id,),
                )
            else:
                aliases = tuple(dict.fromkeys((*known.aliases, *report.aliases)))
                merged[key] = replace(known, aliases=aliases, agents=(*known.agents, agent.id))
    return list(merged.values())


def resolve_image(images: Sequence[Image], wanted: str, architecture: str | None) -> Image:
    """The image of that name, else of that alias; a name without a tag also finds its only tag or ``latest``.

    Raises:
        ImageNotFound: ``data.available`` lists names and aliases; the message tells if only the architecture is wrong.
    """
    arch = architecture_name(architecture) if architecture else None
    by_name = [i for i in images if i.name == wanted]
    by_alias = [i for i in images if wanted in i.aliases]
    tagged = [i for i in images if ":" not in wanted.rpartition("/")[2] and i.name.rpartition(":")[0] == wanted]
    latest = [i for i in tagged if i.name.endswith(":latest")]
    loose = latest or (tagged if len({i.name for i in tagged}) == 1 else [])
    for found in (by_name, by_alias, loose):
        match = next((i for i in found if arch is None or i.architecture == arch), None)
        if match is not None:
            return match
    available = sorted({name for i in images for name in (i.name, *i.aliases)})
    other = sorted({i.architecture for i in (*by_name, *by_alias, *loose)})
    if other:
        message = f"The image {wanted[:128]!r} exists for {', '.join(other)} only, not for {arch}."
    elif available:
        message = f"There is no image {wanted[:128]!r}. There are: {', '.join(available[:20])}."
    else:
        message = f"There is no image {wanted[:128]!r}: no agent has reported any."
    raise ImageNotFound(message, data={"available": available[:100]})
