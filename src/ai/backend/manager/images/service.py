"""The images of registries and agents as users see them, and the names that administrators give them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from ai.backend.common.errors import Conflict, Forbidden, ImageNotFound, InvalidInput, NotFound
from ai.backend.common.ids import DomainName
from ai.backend.common.images import (
    CUSTOMIZED_OWNER,
    ImageName,
    architecture_name,
    check_alias,
    label_problem,
    registry_of,
)
from ai.backend.common.states import AgentStatus
from ai.backend.common.wire.reports import ImageReport
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.agents.model import Agent
from ai.backend.manager.agents.store import AgentStore
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.images.model import AutoPull, Image, ImageAlias, RegisteredImage
from ai.backend.manager.images.registries import ContainerRegistries, require_superadmin
from ai.backend.manager.images.store import ImageStore
from ai.backend.manager.resource_groups.service import ResourceGroupService

_OPERATION = "operation"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFilter:
    """Which images a list has (spec 03-09 "Image Management").

    ``domain`` None is the caller's own, and for superadmins every one; ``group`` narrows to what agents that are open
    to it have, ``scaling_group`` to what those of one resource group have.
    """

    is_installed: bool | None = None
    is_operation: bool | None = None
    domain: str | None = None
    group: str | None = None
    scaling_group: str | None = None


class ImageService:
    """See the module."""

    def __init__(
        self,
        store: ImageStore,
        agents: AgentStore,
        identities: IdentityStore,
        resource_groups: ResourceGroupService,
        registries: ContainerRegistries,
    ) -> None:
        self._store = store
        self._agents = agents
        self._identities = identities
        self._resource_groups = resource_groups
        self._registries = registries

    # ---- reading

    async def images(self, caller: Caller, wanted: ImageFilter | None = None) -> Sequence[Image]:
        """Those that the caller may use.

        Raises:
            Forbidden: another domain's, for anybody but superadmins.
        """
        wanted = wanted or ImageFilter()
        agents = [a for a in await self._agents.agents() if a.status is AgentStatus.ALIVE]
        found = merge_images(agents, await self._store.all(), await self._store.aliases())
        if wanted.domain is not None and wanted.domain != caller.domain_name:
            require_superadmin(caller, "ask for the images of other domains")
        domain = wanted.domain or (None if caller.is_superadmin else caller.domain_name)
        allowed = await self.allowed_registries(DomainName(domain)) if domain else None
        shown = [i for i in found if self._is_shown(i, caller, allowed)]
        if wanted.group is not None or wanted.scaling_group is not None:
            near = await self._agents_of(caller, agents, wanted)
            shown = [i for i in shown if near.intersection(i.agents)]
        if wanted.is_installed is not None:
            shown = [i for i in shown if bool(i.agents) is wanted.is_installed]
        if wanted.is_operation:
            shown = [i for i in shown if _OPERATION in i.labels.get("ai.backend.features", "").split()]
        return shown

    @staticmethod
    def _is_shown(image: Image, caller: Caller, allowed: Collection[str] | None) -> bool:
        return (caller.sees_all or _is_usable(image, caller)) and _is_of(image, allowed)

    async def _agents_of(self, caller: Caller, agents: Iterable[Agent], wanted: ImageFilter) -> frozenset[str]:
        groups = {g.name for g in await self._resource_groups.available(caller, group=wanted.group)}
        if wanted.scaling_group is not None:
            groups &= {wanted.scaling_group}
        return frozenset(a.id for a in agents if a.scaling_group in groups)

    async def image(self, caller: Caller, reference: str, architecture: str | None = None) -> Image:
        """Raises ImageNotFound: none that the caller may use."""
        return resolve_image(await self.images(caller), reference, architecture)

    async def allowed_registries(self, domain: DomainName) -> Collection[str] | None:
        """None: whichever are configured."""
        found = await self._identities.domain(domain)
        return found.allowed_docker_registries if found is not None else None

    # ---- for sessions

    async def choose(
        self, owner: Caller, domain: DomainName, agents: Sequence[Agent], reference: str, architecture: str | None
    ) -> Image:
        """The image that a session is made of: of a registry, or brought by one of these agents.

        Raises:
            ImageNotFound: there is none of that name. Forbidden: the domain may not use its registry.
            InvalidInput: its labels make no sense.
        """
        images = merge_images(agents, *await self.known_as(reference))
        allowed = await self.allowed_registries(domain)
        try:
            image = resolve_image([i for i in images if _is_usable(i, owner)], reference, architecture)
        except ImageNotFound:  # it is to suggest what the owner may use, and to name nothing else
            everything = merge_images(agents, await self._store.all(), await self._store.aliases())
            usable = [i for i in everything if _is_usable(i, owner) and _is_of(i, allowed)]
            image = resolve_image(usable, reference, architecture)
        registry = registry_of(image.name)
        if not _is_of(image, allowed):
            raise Forbidden(
                f"The domain {domain} may not use images of {registry}.",
                data={"image": "registry not allowed", "registry": registry},
            )
        if problem := label_problem(image.labels):
            raise InvalidInput(f"The image {image.name} cannot be used: {problem}.", data={"image": "bad labels"})
        if not image.agents and not any(a.can_pull and a.architecture == image.architecture for a in agents):
            raise ImageNotFound(f"No agent of this resource group has {image.name}, or can fetch it.")
        return image

    async def known_as(self, wanted: str) -> tuple[Sequence[RegisteredImage], Sequence[ImageAlias]]:
        """What of registries, and which alias, a name stands for."""
        alias = await self._store.alias(wanted)
        return await self._store.lookup(wanted), [alias] if alias is not None else []

    async def with_fetchable(self, agents: Sequence[Agent], names: Collection[str]) -> list[Agent]:
        """The agents, with those of the named images that they may fetch, as if they had them already."""
        fetchers = [a for a in agents if a.can_pull]
        if not fetchers or not names or await self._registries.auto_pull() is AutoPull.NONE:
            return list(agents)
        there = [ImageReport(name=i.name, architecture=i.architecture) for i in await self._store.named(names)]
        return [
            replace(a, images=(*a.images, *(i for i in there if i.architecture == a.architecture))) if a.can_pull else a
            for a in agents
        ]

    # ---- administration

    async def _known(self, caller: Caller, reference: str, architecture: str | None) -> Image:
        """Raises ImageNotFound."""
        agents = await self._agents.agents()
        images = merge_images(agents, await self._store.lookup(reference), await self._store.aliases())
        return resolve_image(images, reference, architecture)

    async def alias(self, caller: Caller, alias: str, target: str, architecture: str | None = None) -> ImageAlias:
        """Let ``alias`` stand for an image that a registry or an agent has; another alias of it is no target.

        Raises:
            Forbidden, InvalidInput: no word for it. ImageNotFound. Conflict: it stands for another image.
        """
        require_superadmin(caller, "give images other names")
        check_alias(alias)
        image = await self._known(caller, target, architecture)
        if alias == image.name or alias in {i.name for i in await self._store.named([alias])}:
            raise Conflict(f"{alias!r} is the name of an image itself.", data={"alias": "taken"})
        made = ImageAlias(
            alias=alias, image=image.name, architecture=architecture_name(architecture) if architecture else None
        )
        await self._store.put_alias(made)
        return made

    async def dealias(self, caller: Caller, alias: str) -> None:
        """Raises Forbidden, NotFound."""
        require_superadmin(caller, "take names from images")
        if not await self._store.drop_alias(alias):
            raise NotFound(f"There is no alias {alias[:128]!r}.", data={"alias": "unknown"})

    async def forget(self, caller: Caller, reference: str, architecture: str | None = None) -> RegisteredImage:
        """Let a registry's image be unknown until the next scan; copies on agents stay usable there.

        The owner of a customized image may, too.

        Raises:
            Forbidden, ImageNotFound.
        """
        found = await self._store.lookup(reference)
        if not found:
            reference = str(ImageName.parse(reference))
            found = await self._store.lookup(reference)
        arch = architecture_name(architecture) if architecture else None
        chosen = [i for i in found if arch in (None, i.architecture)]
        if not caller.is_superadmin:
            chosen = [i for i in chosen if i.labels.get(CUSTOMIZED_OWNER) == f"user:{caller.user_id}"]
            if not chosen:
                raise Forbidden("Only superadmins forget images.")
        names = {i.name for i in chosen}
        if len(names) > 1 or not chosen:
            what = f"There are several: {', '.join(sorted(names)[:20])}." if names else "No registry had it."
            raise ImageNotFound(f"There is no one image {reference[:128]!r}. {what}")
        await self._store.forget(chosen[0].name, arch)
        return replace(chosen[0])

    async def clear(self, caller: Caller, registry: str) -> int:
        """Forget all images of a registry; how many. Raises Forbidden."""
        require_superadmin(caller, "forget images")
        return await self._store.clear(registry)


def _is_usable(image: Image, caller: Caller) -> bool:
    """Whether nobody else made it of a session of theirs."""
    return image.labels.get(CUSTOMIZED_OWNER) in (None, f"user:{caller.user_id}")


def _is_of(image: Image, allowed: Collection[str] | None) -> bool:
    """Whether its registry is one of these; what only nodes bring is of none, and is for everybody."""
    return not image.is_registered or is_allowed(registry_of(image.name), allowed)


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
