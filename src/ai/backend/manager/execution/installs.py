"""Loads artifacts of the type IMAGE as images on agents, so that sessions can run on them (spec 03-17 "Artifacts")."""

from __future__ import annotations

from functools import partial

import msgspec

from ai.backend.common.ids import TaskId
from ai.backend.common.images import ImageName
from ai.backend.common.wire.agent import ImageJob
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import require
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.artifacts.mounts import ArtifactMounts
from ai.backend.manager.images.preload import ImagePreloader


class ImageInstaller(msgspec.Struct, frozen=True):
    """Starts background tasks that load the files of an artifact as an image on agents."""

    artifacts: ArtifactMounts
    preloader: ImagePreloader

    async def install(self, caller: Caller, ref: str, target_agents: str, image: str | None = None) -> TaskId:
        """Starts a background task that loads an available artifact on the agents of an expression. The default name of
        the image is the artifact's, in lower case, with the version as its tag.

        Raises:
            Forbidden, NotFound, Unavailable; Conflict: it is not available, or not open to everyone, as an image is.
            InvalidInput: it is no IMAGE, its name cannot be an image's, or no agent matches.
        """
        require(caller, Operation.PLACE_IMAGES)
        agents = await self.preloader.alive_agents(target_agents)
        default_name, path = await self.artifacts.image_file(caller, ref)
        name = str(ImageName.parse(image or default_name.lower()))
        job = partial(ImageJob, action="load", image=name, folder=path)
        return await self.preloader.start_task(caller, f"install {name}", agents, job)
