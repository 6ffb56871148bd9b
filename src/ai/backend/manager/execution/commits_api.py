"""Images over REST: commits of sessions (client wire contract 2.1, spec 03-18), and names of registries."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from ai.backend.infra.http.routes import Call, Schema, route
from ai.backend.manager.access.requests import caller_of
from ai.backend.manager.execution.commits import Commit, CommitService
from ai.backend.manager.images.facade import Images
from ai.backend.manager.images.service import is_allowed


class ImagifyBody(Schema, frozen=True):
    """``image_name`` becomes a part of the image's tag."""

    image_name: Annotated[str, Meta(min_length=1, max_length=64)]
    image_visibility: str = "user"
    image_owner: str | None = None


class ImagesApi:
    def __init__(self, images: Images, commits: CommitService) -> None:
        self._images = images
        self._commits = commits

    @route("POST", "/session/{s}/commit", status=201)
    async def commit(self, call: Call) -> dict[str, Any]:
        """Make an archive of the session's root file system on its agent; ``bgtask_id`` tells how far it is."""
        begun = await self._commits.archive(caller_of(call), call.params["s"], owner_access_key=call.owner_access_key)
        return _told(begun)

    @route("GET", "/session/{s}/commit")
    async def commit_status(self, call: Call) -> dict[str, Any]:
        """``ongoing`` while a commit of the session is under way, else ``ready``."""
        session, is_busy = await self._commits.is_under_way(
            caller_of(call), call.params["s"], owner_access_key=call.owner_access_key
        )
        return {"status": "ongoing" if is_busy else "ready", "kernel": str(session.main.id)}

    @route("POST", "/session/{s}/imagify", body=ImagifyBody, status=201)
    async def imagify(self, call: Call[ImagifyBody]) -> dict[str, Any]:
        """Push an image of the session, for its owner alone, to where administrators have said."""
        begun = await self._commits.image(
            caller_of(call), call.params["s"], call.body.image_name, owner_access_key=call.owner_access_key
        )
        return {**_told(begun), "task_id": str(begun.task_id)}

    @route("GET", "/config/docker-registries")
    async def docker_registries(self, call: Call) -> dict[str, str]:
        """Name and URL of the registries whose images the caller's domain may use."""
        caller = caller_of(call)
        allowed = None if caller.is_superadmin else await self._images.service.allowed_registries(caller.domain_name)
        registries = await self._images.registries.all()
        return {name: registry.url for name, registry in registries.items() if is_allowed(name, allowed)}


def _told(begun: Commit) -> dict[str, Any]:
    return {
        "bgtask_id": str(begun.task_id),
        "kernel": str(begun.session.main.id),
        "session": str(begun.session.id),
        "path": begun.path,
    }
