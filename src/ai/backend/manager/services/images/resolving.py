"""Which images there are, and which one a user means. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from ai.backend.common.errors import ImageNotFound
from ai.backend.common.images import architecture_name
from ai.backend.common.states import AgentStatus
from ai.backend.common.wire.reports import ImageReport
from ai.backend.manager.model.cluster import Agent, Image
from ai.backend.manager.model.image import ImageAlias, RegisteredImage

_LISTED = 100


def merge_images(
    agents: Iterable[Agent], registered: Iterable[RegisteredImage] = (), aliases: Iterable[ImageAlias] = ()
) -> list[Image]:
    """What agents and registries have, one entry for each name and architecture: agents' first, in order of mention."""
    merged: dict[tuple[str, str], Image] = {}
    for agent in agents:
        if agent.status is AgentStatus.TERMINATED:
            continue
        for report in agent.images:
            key = report.name, architecture_name(report.architecture)
            merged[key] = _with_report(merged.get(key), key[1], agent, report)
    for image in registered:
        key = image.name, image.architecture
        known = merged.get(key)
        merged[key] = Image(
            name=image.name,
            architecture=image.architecture,
            digest=image.digest,
            size_bytes=known.size_bytes if known is not None else image.size_bytes,
            labels=image.labels,
            aliases=known.aliases if known is not None else (),
            agents=known.agents if known is not None else (),
            is_registered=True,
        )
    for alias in aliases:
        for key in [k for k in merged if k[0] == alias.image and alias.architecture in (None, k[1])]:
            names = tuple(dict.fromkeys((*merged[key].aliases, alias.alias)))
            merged[key] = replace(merged[key], aliases=names)
    return list(merged.values())


def _with_report(known: Image | None, architecture: str, agent: Agent, report: ImageReport) -> Image:
    if known is not None:
        aliases = tuple(dict.fromkeys((*known.aliases, *report.aliases)))
        return replace(known, aliases=aliases, agents=(*known.agents, agent.id))
    return Image(
        name=report.name,
        architecture=architecture,
        digest=report.digest,
        size_bytes=report.size_bytes,
        labels=report.labels,
        aliases=tuple(report.aliases),
        agents=(agent.id,),
    )


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
    raise ImageNotFound(message, data={"available": available[:_LISTED]})


def is_allowed(registry: str, allowed: Collection[str] | None) -> bool:
    """Whether a domain may use images of that registry. What a node brings itself is of none, and is for everybody.

    ``allowed`` None: whichever is configured.
    """
    return not registry or allowed is None or registry in allowed
