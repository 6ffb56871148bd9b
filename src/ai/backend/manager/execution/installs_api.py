"""Images made of artifacts, over REST."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ai.backend.infra.http.fields import Word
from ai.backend.infra.http.routes import Call, Reply, Schema, route
from ai.backend.manager.access.requests import STORAGE_PROBLEMS, caller_of
from ai.backend.manager.artifacts.schemas import TaskStarted
from ai.backend.manager.execution.installs import ImageInstaller


class InstallBody(Schema, frozen=True):
    """Selects the agents on which an artifact is installed as an image, and names the image.

    ``agents``: an id, a pattern of ids, ``group:NAME``, or several of them with commas. ``image``: the image's name;
    the default is the name of the artifact, with the version as its tag.
    """

    agents: Annotated[str, Meta(min_length=1, max_length=4_096)] = "*"
    image: Word | None = None


class ImageInstallsApi(msgspec.Struct, frozen=True):
    """Installs artifacts as images. ``{v}`` is the id of a revision or ``ARTIFACT[@VERSION]``."""

    problems = STORAGE_PROBLEMS

    installer: ImageInstaller

    @route("POST", "/artifacts/revisions/{v}/install", body=InstallBody, reply=TaskStarted, status=202)
    async def install(self, call: Call[InstallBody]) -> Reply:
        """Loads an available artifact of the type IMAGE on agents in the background; sessions can then name it."""
        body = call.body
        task_id = await self.installer.install(caller_of(call), call.params["v"], body.agents, body.image)
        return Reply(TaskStarted(bgtask_id=str(task_id)), 202)
