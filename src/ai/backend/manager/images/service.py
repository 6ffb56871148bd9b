"""Lists and resolves images of registries and agents, and manages their aliases."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from difflib import SequenceMatcher
from heapq import nlargest

import msgspec

from ai.backend.common.errors import Conflict, Forbidden, ImageNotFound, InvalidInput, NotFound
from ai.backend.common.ids import DomainName
from ai.backend.common.images import (
    CUSTOMIZED_OWNER_LABEL,
    ImageName,
    architecture_name,
    check_alias,
    label_problem,
    registry_of,
)
from ai.backend.common.states import AgentStatus
from ai.backend.common.structs import replace
from ai.backend.common.wire.reports import ImageReport
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted, require, scope_of
from ai.backend.manager.access.permissions import Operation, Scope
from ai.backend.manager.agents.model import Agent
from ai.backend.manager.agents.store import AgentStore
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.images.model import AutoPull, Image, ImageAlias, RegisteredImage
from ai.backend.manager.images.registries import ContainerRegistries
from ai.backend.manager.images.store import ImageStore
from ai.backend.manager.resource_groups.service import ResourceGroupService

_OPERATION_FEATURE = "operation"
_MAX_LISTED_NAMES = 100
_MAX_SUGGESTED_NAMES = 5
_MAX_SAMPLE_NAMES = 12
_MAX_COMPARED_NAMES = 50
_MAX_COMPARED_CHARACTERS = 64
_MIN_SIMILARITY = 0.6


class ImageFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the images of a list (spec 03-09 "Image Management").

    ``domain`` None is the caller's own, and all for superadmins; ``group`` selects images on agents that the group may
    use, ``scaling_group`` those on agents of one resource group.
    """

    is_installed: bool | None = None
    is_operation: bool | None = None
    domain: str | None = None
    group: str | None = None
    scaling_group: str | None = None


class ImageService(msgspec.Struct, frozen=True):
    """Lists images, chooses the images of sessions, and manages aliases."""

    store: ImageStore
    agents: AgentStore
    identities: IdentityStore
    resource_groups: ResourceGroupService
    registries: ContainerRegistries

    async def images(self, caller: Caller, image_filter: ImageFilter | None = None) -> Sequence[Image]:
        """Returns the images that the caller may use. Raises Forbidden: only superadmins may list the images of another
        domain."""
        image_filter = image_filter or ImageFilter()
        agents = [agent for agent in await self.agents.agents() if agent.status is AgentStatus.ALIVE]
        merged_images = merge_images(agents, await self.store.all(), await self.store.aliases())
        if image_filter.domain is not None:
            require(caller, Operation.SEE_DOMAIN_IMAGES, domain_name=image_filter.domain)
        sees_domains = scope_of(caller, Operation.SEE_DOMAIN_IMAGES) is Scope.ALL
        domain = image_filter.domain or (None if sees_domains else caller.domain_name)
        allowed_registries = await self.allowed_registries(DomainName(domain)) if domain else None
        sees_all = is_permitted(caller, Operation.SEE_IMAGES)
        visible_images = [
            image
            for image in merged_images
            if (sees_all or _is_usable(image, caller)) and _is_from_allowed(image, allowed_registries)
        ]
        if image_filter.group is not None or image_filter.scaling_group is not None:
            selected_agents = await self._agents_of(caller, agents, image_filter)
            visible_images = [image for image in visible_images if selected_agents.intersection(image.agents)]
        if image_filter.is_installed is not None:
            visible_images = [image for image in visible_images if bool(image.agents) is image_filter.is_installed]
        if image_filter.is_operation:
            visible_images = [
                image
                for image in visible_images
                if _OPERATION_FEATURE in image.labels.get("ai.backend.features", "").split()
            ]
        return visible_images

    async def _agents_of(self, caller: Caller, agents: Iterable[Agent], image_filter: ImageFilter) -> frozenset[str]:
        groups = {group.name for group in await self.resource_groups.available_groups(caller, group=image_filter.group)}
        if image_filter.scaling_group is not None:
            groups &= {image_filter.scaling_group}
        return frozenset(agent.id for agent in agents if agent.scaling_group in groups)

    async def image(self, caller: Caller, reference: str, architecture: str | None = None) -> Image:
        """Returns the image that a reference names. Raises ImageNotFound if the caller may use none."""
        return resolve_image(await self.images(caller), reference, architecture)

    async def allowed_registries(self, domain: DomainName) -> Collection[str] | None:
        """Returns the registries that a domain may use, or None if it may use all configured registries."""
        row = await self.identities.domain(domain)
        return row.allowed_docker_registries if row is not None else None

    async def choose(
        self, owner: Caller, domain: DomainName, agents: Sequence[Agent], reference: str, architecture: str | None
    ) -> Image:
        """Returns the image that a session names, from a registry or from one of these agents. Raises ImageNotFound;
        Forbidden: the domain may not use its registry; InvalidInput: its labels are malformed.
        """
        images = merge_images(agents, *await self.images_of_reference(reference))
        allowed_registries = await self.allowed_registries(domain)
        try:
            image = resolve_image([image for image in images if _is_usable(image, owner)], reference, architecture)
        except ImageNotFound:  # raise again with suggestions that the owner may use
            all_images = merge_images(agents, await self.store.all(), await self.store.aliases())
            usable_images = [
                image
                for image in all_images
                if _is_usable(image, owner) and _is_from_allowed(image, allowed_registries)
            ]
            image = resolve_image(usable_images, reference, architecture)
        registry = registry_of(image.name)
        if not _is_from_allowed(image, allowed_registries):
            raise Forbidden(
                f"The domain {domain} may not use images of {registry}.",
                data={"image": "registry not allowed", "registry": registry},
            )
        if problem := label_problem(image.labels):
            raise InvalidInput(f"The image {image.name} cannot be used: {problem}.", data={"image": "bad labels"})
        if not image.agents and not any(
            agent.can_fetch and agent.architecture == image.architecture for agent in agents
        ):
            raise ImageNotFound(f"No agent of this resource group has {image.name}, or can fetch it.")
        return image

    async def images_of_reference(self, reference: str) -> tuple[Sequence[RegisteredImage], Sequence[ImageAlias]]:
        """Returns the registered images that a reference names, and the alias of that name, if there is one."""
        alias = await self.store.alias(reference)
        return await self.store.lookup(reference), [alias] if alias is not None else []

    async def add_fetchable_images(self, agents: Sequence[Agent], names: Collection[str]) -> list[Agent]:
        """Returns the agents, each with those of the named images added that the agent can fetch from a registry."""
        fetching_agents = [agent for agent in agents if agent.can_fetch]
        if not fetching_agents or not names or await self.registries.auto_pull() is AutoPull.NONE:
            return list(agents)
        registry_images = [
            ImageReport(name=image.name, architecture=image.architecture) for image in await self.store.by_names(names)
        ]
        images_by_agent = {
            agent.id: [image for image in registry_images if image.architecture == agent.architecture]
            for agent in fetching_agents
        }
        return [replace(agent, images=(*agent.images, *images_by_agent.get(agent.id, ()))) for agent in agents]

    async def alias(self, caller: Caller, alias: str, target: str, architecture: str | None = None) -> ImageAlias:
        """Makes ``alias`` another name of an image of a registry or agent. Raises Forbidden, ImageNotFound;
        InvalidInput: the alias is malformed; Conflict: it stands for another image."""
        require(caller, Operation.CHANGE_IMAGES)
        check_alias(alias)
        agents = await self.agents.agents()
        images = merge_images(agents, await self.store.lookup(target), await self.store.aliases())
        image = resolve_image(images, target, architecture)
        if alias == image.name or alias in {
            registered_images.name for registered_images in await self.store.by_names([alias])
        }:
            raise Conflict(f"{alias!r} is the name of an image itself.", data={"alias": "taken"})
        image_alias = ImageAlias(
            alias=alias, image=image.name, architecture=architecture_name(architecture) if architecture else None
        )
        await self.store.put_alias(image_alias)
        return image_alias

    async def dealias(self, caller: Caller, alias: str) -> None:
        """Removes an alias. Raises Forbidden, NotFound."""
        require(caller, Operation.CHANGE_IMAGES)
        if not await self.store.drop_alias(alias):
            raise NotFound(f"There is no alias {alias[:128]!r}.", data={"alias": "unknown"})

    async def forget(self, caller: Caller, reference: str, architecture: str | None = None) -> RegisteredImage:
        """Removes an image of a registry until the next scan; copies on agents stay usable. Superadmins may do so, and
        the owner of a customized image. Raises Forbidden, ImageNotFound.
        """
        matches = await self.store.lookup(reference)
        if not matches:
            reference = str(ImageName.parse(reference))
            matches = await self.store.lookup(reference)
        exact_architecture = architecture_name(architecture) if architecture else None
        matching_images = [image for image in matches if exact_architecture in (None, image.architecture)]
        if not is_permitted(caller, Operation.CHANGE_IMAGES):
            matching_images = [
                image
                for image in matching_images
                if image.labels.get(CUSTOMIZED_OWNER_LABEL) == f"user:{caller.user_id}"
            ]
            if not matching_images:
                require(caller, Operation.CHANGE_IMAGES)
        names = {image.name for image in matching_images}
        if len(names) > 1 or not matching_images:
            problem = f"There are several: {', '.join(sorted(names)[:20])}." if names else "No registry had it."
            raise ImageNotFound(f"There is no one image {reference[:128]!r}. {problem}")
        await self.store.forget(matching_images[0].name, exact_architecture)
        return matching_images[0]

    async def clear(self, caller: Caller, registry: str) -> int:
        """Removes all images of a registry and returns their number. Raises Forbidden."""
        require(caller, Operation.CHANGE_IMAGES)
        return await self.store.clear(registry)


def _is_usable(image: Image, caller: Caller) -> bool:
    """Returns True unless the image was committed from a session for the use of another user alone."""
    return image.labels.get(CUSTOMIZED_OWNER_LABEL) in (None, f"user:{caller.user_id}")


def _is_from_allowed(image: Image, allowed_registries: Collection[str] | None) -> bool:
    """Returns True if the image is from an allowed registry; local images of nodes are always allowed."""
    return not image.is_registered or is_allowed(registry_of(image.name), allowed_registries)


def merge_images(
    agents: Iterable[Agent], registered_images: Iterable[RegisteredImage] = (), aliases: Iterable[ImageAlias] = ()
) -> list[Image]:
    """Merges images by name and architecture; images of agents come first, in order of appearance.

    An alias of an administrator is taken from images that have it by their agents.
    """
    merged_images: dict[tuple[str, str], Image] = {}
    for agent in agents:
        if agent.status is AgentStatus.TERMINATED:
            continue
        for report in agent.images:
            key = report.name, architecture_name(report.architecture)
            merged_images[key] = _add_report(merged_images.get(key), key[1], agent, report)
    for image in registered_images:
        key = image.name, image.architecture
        earlier_image = merged_images.get(key) or Image(name=key[0], architecture=key[1], size_bytes=image.size_bytes)
        merged_images[key] = replace(earlier_image, digest=image.digest, labels=image.labels, is_registered=True)
    for alias in aliases:
        architectures = {
            key[1] for key in merged_images if key[0] == alias.image and alias.architecture in (None, key[1])
        }
        for key, merged_image in merged_images.items():
            if key[1] in architectures:
                other_names = tuple(name for name in merged_image.aliases if name != alias.alias)
                names = (*other_names, alias.alias) if key[0] == alias.image else other_names
                merged_images[key] = replace(merged_image, aliases=names)
    return list(merged_images.values())


def _add_report(earlier_image: Image | None, architecture: str, agent: Agent, report: ImageReport) -> Image:
    if earlier_image is not None:
        aliases = tuple(dict.fromkeys((*earlier_image.aliases, *report.aliases)))
        return replace(earlier_image, aliases=aliases, agents=(*earlier_image.agents, agent.id))
    return Image(
        name=report.name,
        architecture=architecture,
        digest=report.digest,
        size_bytes=report.size_bytes,
        labels=report.labels,
        aliases=tuple(report.aliases),
        agents=(agent.id,),
    )


def resolve_image(images: Sequence[Image], reference: str, architecture: str | None) -> Image:
    """Returns the image that has the name, or else the alias, ``reference``. A reference without a tag also matches its
    only tag or ``latest``. Raises ImageNotFound: ``data.available`` lists names and aliases, those that are written
    alike first.
    """
    exact_architecture = architecture_name(architecture) if architecture else None
    by_name = [image for image in images if image.name == reference]
    by_alias = [image for image in images if reference in image.aliases]
    images_of_repository = [
        image
        for image in images
        if ":" not in reference.rpartition("/")[2] and image.name.rpartition(":")[0] == reference
    ]
    latest_images = [image for image in images_of_repository if image.name.endswith(":latest")]
    by_repository = latest_images or (
        images_of_repository if len({image.name for image in images_of_repository}) == 1 else []
    )
    for candidates in (by_name, by_alias, by_repository):
        match = next(
            (image for image in candidates if exact_architecture is None or image.architecture == exact_architecture),
            None,
        )
        if match is not None:
            return match
    names = sorted({name for image in images for name in (image.name, *image.aliases)})
    similar_to_reference = similar_names(reference, names)
    suggested_names = [*similar_to_reference, *(name for name in names if name not in similar_to_reference)]
    architectures = sorted({image.architecture for image in (*by_name, *by_alias, *by_repository)})
    if architectures:
        message = (
            f"The image {reference[:128]!r} exists for {', '.join(architectures)} only, not for {exact_architecture}."
        )
    elif similar_to_reference:
        message = f"There is no image {reference[:128]!r}. The closest names are: {', '.join(similar_to_reference)}."
    elif suggested_names:
        short_names = sorted({_shortest_name(image) for image in images})
        listed_names = ", ".join(short_names[:_MAX_SAMPLE_NAMES])
        count_text = f" {len(short_names)}, such as" if len(short_names) > _MAX_SAMPLE_NAMES else ""
        message = f"There is no image {reference[:128]!r}. There are{count_text}: {listed_names}."
    else:
        message = f"There is no image {reference[:128]!r}: no agent has reported any."
    raise ImageNotFound(message, data={"available": suggested_names[:_MAX_LISTED_NAMES]})


def _shortest_name(image: Image) -> str:
    return min((image.name, *image.aliases), key=lambda name: (len(name), name))


def similar_names(reference: str, names: Sequence[str]) -> list[str]:
    """Returns up to five names that are spelled like a reference, the most similar first.

    Of equally similar names, shorter ones come first. A name counts as its part that is most like the reference: whole,
    without its path, or without path and tag. Of many names those that have most characters in common with the
    reference are compared, so that the time stays bounded.
    """
    matcher = SequenceMatcher(autojunk=False)
    matcher.set_seq2(reference[:_MAX_COMPARED_CHARACTERS])

    def ratio_of(name: str, measure_ratio: Callable[[], float]) -> float:
        last_part = name.rpartition("/")[2]
        ratios = []
        for compared_part in {name, last_part, last_part.partition(":")[0]}:
            matcher.set_seq1(compared_part[:_MAX_COMPARED_CHARACTERS])
            ratios.append(measure_ratio())
        return max(ratios)

    likely_names = nlargest(_MAX_COMPARED_NAMES, names, key=lambda name: ratio_of(name, matcher.quick_ratio))
    ratios = {name: ratio_of(name, matcher.ratio) for name in likely_names}
    similar_to_reference = [name for name in likely_names if ratios[name] >= _MIN_SIMILARITY]
    return sorted(similar_to_reference, key=lambda name: (-ratios[name], len(name), name))[:_MAX_SUGGESTED_NAMES]


def is_allowed(registry: str, allowed_registries: Collection[str] | None) -> bool:
    """Returns True if a registry is allowed; ``allowed_registries`` None allows all. Local images of nodes have no
    registry.
    """
    return not registry or allowed_registries is None or registry in allowed_registries
