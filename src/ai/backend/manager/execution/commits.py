"""Makes commits of sessions as archives and images (spec 03-18 "User-defined Image Commit").

``config/docker/image/commit`` set to ``false`` forbids commits to all but superadmins. Images of users are pushed to
``config/docker/image/customized``, as REGISTRY/PROJECT; without it sessions become archives only.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

import msgspec

from ai.backend.common.errors import Conflict, Forbidden, InvalidInput, NotSupported, Unavailable
from ai.backend.common.ids import TaskId
from ai.backend.common.images import CUSTOMIZED_NAME_LABEL, CUSTOMIZED_OWNER_LABEL, ImageName
from ai.backend.common.states import SessionStatus
from ai.backend.common.wire.agent import ImageJob, ImageJobState, RegistryAccess
from ai.backend.infra.clock import Clock, IdGenerator
from ai.backend.infra.config_store import ConfigStore
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.agents.store import AgentGateway
from ai.backend.manager.images.model import ContainerRegistry, ScannedImage
from ai.backend.manager.images.preload import await_job
from ai.backend.manager.images.registries import ContainerRegistries
from ai.backend.manager.images.store import ImageStore
from ai.backend.manager.sessions.lookup import SessionFinder
from ai.backend.manager.sessions.model import Session
from ai.backend.manager.tasks.service import TaskProgress, TaskService

ALLOWED_CONFIG_KEY = "config/docker/image/commit"
CUSTOMIZED_CONFIG_KEY = "config/docker/image/customized"
_SUBJECT_PREFIX = "the image of session "
_NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)
_UNSAFE_CHARACTERS_PATTERN = re.compile(r"[^A-Za-z0-9_@+.-]+")


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a commit that has started: its session, its background task and its result.

    ``path`` is the name of the image, or of the archive below the agent's folder of archives.
    """

    session: Session
    task_id: TaskId
    path: str


@dataclass(eq=False, repr=False)
class CommitService:
    """Makes commits of sessions, one at a time for each session."""

    store: ImageStore
    registries: ContainerRegistries
    finder: SessionFinder
    gateway: AgentGateway
    tasks: TaskService
    config: ConfigStore
    clock: Clock
    id_generator: IdGenerator

    async def archive(self, caller: Caller, ref: str, *, owner_access_key: str | None = None) -> Commit:
        """Saves a session as an archive on the agent's disk, named by the session and the time. Raises SessionNotFound,
        Forbidden (users may not), Conflict (the session does not run, or a commit is under way) and NotSupported (the
        runtime makes no images).
        """
        session = await self._require_running_session(caller, ref, owner_access_key)
        timestamp = self.clock.now().strftime("%Y%m%dT%H%M%S")
        folder = _UNSAFE_CHARACTERS_PATTERN.sub("-", session.user_email).lstrip(".")[:100] or "nobody"
        filename = (
            f"{_UNSAFE_CHARACTERS_PATTERN.sub('-', session.name).lstrip('.-')[:80] or 'session'}-{timestamp}.tar.gz"
        )
        archive_job = ImageJob(
            job_id=str(self.id_generator.uuid()),
            action="commit",
            kernel_id=str(session.main.id),
            folder=folder,
            filename=filename,
            wait_s=0.5,
        )
        return await self._start_commit(caller, session, archive_job, f"{folder}/{filename}", None)

    async def image(self, caller: Caller, ref: str, name: str, *, owner_access_key: str | None = None) -> Commit:
        """Saves a session as an image in a registry, which only the session's owner may use. Raises InvalidInput
        (malformed name), NotSupported (no registry is configured), and as :meth:`archive`.
        """
        if not _NAME_PATTERN.fullmatch(name):
            message = f"{name[:64]!r} cannot be the name of an image: lower case letters, digits, '.', '_' and '-'."
            raise InvalidInput(message, data={"image_name": "malformed"})
        session = await self._require_running_session(caller, ref, owner_access_key)
        registry, project = await self._target_registry()
        base_image = ImageName.parse(session.main.image)
        tag = f"{base_image.tag[:50]}-{name}-{session.user_id.hex[:12]}"
        target_image = str(ImageName.parse(f"{registry.name}/{project}/{base_image.path.rpartition('/')[2]}:{tag}"))
        registry_access = RegistryAccess(registry=registry.name, username=registry.username, password=registry.password)
        image_job = ImageJob(
            job_id=str(self.id_generator.uuid()),
            action="commit",
            image=target_image,
            kernel_id=str(session.main.id),
            folder="push",
            filename=str(session.id),
            labels={CUSTOMIZED_OWNER_LABEL: f"user:{session.user_id}", CUSTOMIZED_NAME_LABEL: name},
            access=registry_access if registry.username else None,
            wait_s=0.5,
        )
        return await self._start_commit(caller, session, image_job, target_image, registry)

    async def is_under_way(
        self, caller: Caller, ref: str, *, owner_access_key: str | None = None
    ) -> tuple[Session, bool]:
        """Returns the session, and True if a commit of the session is running. Raises SessionNotFound."""
        session = await self.finder.one(caller, ref, owner_access_key=owner_access_key)
        return session, await self.tasks.is_under_way(f"{_SUBJECT_PREFIX}{session.id}")

    async def _target_registry(self) -> tuple[ContainerRegistry, str]:
        configured_target = (await self.config.get(CUSTOMIZED_CONFIG_KEY) or "").strip().strip("/")
        for name, registry in (await self.registries.all()).items():
            if configured_target.startswith(f"{name}/"):
                return registry, configured_target.removeprefix(f"{name}/")
        raise NotSupported(f"Images of users cannot be pushed: {CUSTOMIZED_CONFIG_KEY} names no REGISTRY/PROJECT.")

    async def _require_running_session(self, caller: Caller, ref: str, owner_access_key: str | None) -> Session:
        if not is_permitted(caller, Operation.COMMIT_WHEN_DISABLED) and (
            (await self.config.get(ALLOWED_CONFIG_KEY) or "").strip().lower() in ("false", "0", "no")
        ):
            raise Forbidden("The administrators do not let sessions become images.")
        session = await self.finder.one(caller, ref, owner_access_key=owner_access_key, to_change=True)
        if session.status is not SessionStatus.RUNNING or session.main.agent is None:
            raise Conflict(f"The session {session.name} is {session.status}.", data={"status": session.status.value})
        return session

    async def _start_commit(
        self, caller: Caller, session: Session, job: ImageJob, path: str, registry: ContainerRegistry | None
    ) -> Commit:
        agent = session.main.agent
        assert agent is not None
        start_result: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

        async def work(progress: TaskProgress) -> str:
            start_error: Exception | None = Unavailable("The manager stops, or the task was cancelled.")
            try:
                job_state = await self.gateway.agent(agent).image_job(job)
                if job_state.state == "failed" and job_state.code == NotSupported.code:
                    raise NotSupported(job_state.message)
                start_error = None
            except Exception as e:
                start_error = e
                raise
            finally:
                if not start_result.done():
                    start_result.set_result(start_error)
            return await self._await_end(session, job, registry, progress)

        subject = f"{_SUBJECT_PREFIX}{session.id}"
        try:
            task_id = await self.tasks.start(caller, f"commit {session.name}", work, subject=subject)
        except Conflict as e:
            raise Conflict(f"A commit of {session.name} is under way.", data=e.data) from None
        start_error = await asyncio.shield(start_result)
        if start_error is not None:
            raise start_error
        return Commit(session=session, task_id=task_id, path=path)

    async def _await_end(
        self, session: Session, job: ImageJob, registry: ContainerRegistry | None, progress: TaskProgress
    ) -> str:
        agent = session.main.agent
        assert agent is not None

        async def on_progress(state: ImageJobState) -> None:
            await progress.update(state.current, state.total, "writing the archive")

        job_state = await await_job(self.gateway, agent, job, on_progress)
        pushed_name = str(job_state.result.get("place", ""))
        if registry is not None:
            image = ScannedImage(
                name=job.image,
                architecture=session.main.architecture,
                project=ImageName.parse(job.image).path.partition("/")[0],
                digest=str(job_state.result.get("digest", "")),
                config_digest=str(job_state.result.get("config_digest", "")),
                size_bytes=int(job_state.result.get("size_bytes", 0)),
                labels=job_state.result.get("labels") or {},
            )
            await self.store.record(registry.name, [image], at=self.clock.now())
        return f"committed to {pushed_name} on {agent}" if registry is None else f"pushed {pushed_name}"
