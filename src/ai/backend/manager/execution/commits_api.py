"""Images over REST: commits of sessions (client wire contract 2.1, spec 03-18), and names of registries."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from msgspec import Meta

from ai.backend.infra.http.routes import Call, OwnerKey, Schema, route
from ai.backend.manager.access.checks import is_permitted
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.access.requests import SESSION_PROBLEMS, caller_of
from ai.backend.manager.execution.commits import Commit, CommitService
from ai.backend.manager.images.facade import Images
from ai.backend.manager.images.service import is_allowed
from ai.backend.manager.sessions.views import session_of


class ImagifyBody(Schema, frozen=True):
    """The body of an image commit; ``image_name`` becomes a part of the image's tag."""

    image_name: Annotated[str, Meta(min_length=1, max_length=64)]
    image_visibility: str = "user"
    image_owner: str | None = None


class CommitReply(TypedDict):
    """A commit under way: the ids of its task, session and kernel, and the path of the archive on the agent."""

    bgtask_id: str
    kernel: str
    session: str
    path: str | None


class ImageCommitReply(CommitReply):
    task_id: str


class CommitStatus(TypedDict):
    status: Literal["ongoing", "ready"]
    kernel: str


class ImagesApi:
    """Serves commits of sessions and the names of registries."""

    owner_key = OwnerKey.NAMED
    problems = SESSION_PROBLEMS

    def __init__(self, images: Images, commits: CommitService) -> None:
        self._images = images
        self._commits = commits

    @route("POST", "/session/{s}/commit", status=201)
    async def commit(self, call: Call) -> CommitReply:
        """Make an archive of the session's root file system on its agent; ``bgtask_id`` names the task."""
        return _commit_view(await self._commits.archive(**session_of(call)))

    @route("GET", "/session/{s}/commit")
    async def commit_status(self, call: Call) -> CommitStatus:
        """Report ``ongoing`` while a commit of the session is under way, else ``ready``."""
        session, is_under_way = await self._commits.is_under_way(**session_of(call))
        return {"status": "ongoing" if is_under_way else "ready", "kernel": str(session.main.id)}

    @route("POST", "/session/{s}/imagify", body=ImagifyBody, status=201)
    async def imagify(self, call: Call[ImagifyBody]) -> ImageCommitReply:
        """Push an image of the session, for its owner alone, to the registry that administrators chose."""
        commit = await self._commits.image(**session_of(call), name=call.body.image_name)
        return {**_commit_view(commit), "task_id": str(commit.task_id)}

    @route("GET", "/config/docker-registries", owner_key=OwnerKey.REFUSED)
    async def docker_registries(self, call: Call) -> dict[str, str]:
        """List name and URL of the registries whose images the caller's domain may use."""
        caller = caller_of(call)
        allowed_names = None
        if not is_permitted(caller, Operation.SEE_REGISTRIES):
            allowed_names = await self._images.service.allowed_registries(caller.domain_name)
        registries = await self._images.registries.all()
        return {name: registry.url for name, registry in registries.items() if is_allowed(name, allowed_names)}


def _commit_view(commit: Commit) -> CommitReply:
    return {
        "bgtask_id": str(commit.task_id),
        "kernel": str(commit.session.main.id),
        "session": str(commit.session.id),
        "path": commit.path,
    }
