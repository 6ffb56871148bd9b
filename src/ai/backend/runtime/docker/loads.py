"""Makes images from archives of `docker save`."""

from __future__ import annotations

import asyncio
import json
import tarfile
from pathlib import Path

from ai.backend.common.errors import Conflict, InvalidInput, WorkloadError
from ai.backend.runtime.docker.engine import Engine, EngineRefusal

_MAX_MANIFEST_BYTES = 8 << 20
_LOADED_MARKS = ("Loaded image ID: ", "Loaded image: ")


def _names_in(archive: Path) -> list[str]:
    """Returns the names that an archive gives to its image. Raises InvalidInput: it is no archive of one image."""
    try:
        with tarfile.open(archive) as tar:
            member = tar.extractfile("manifest.json")
            images = json.loads(member.read(_MAX_MANIFEST_BYTES)) if member is not None else []
        [image] = images
        return [str(name) for name in image.get("RepoTags") or ()]
    except (OSError, tarfile.TarError, EOFError, KeyError, ValueError, TypeError, AttributeError) as e:
        raise InvalidInput(f"this is no archive of `docker save` with one image: {e}") from e


async def load_image(engine: Engine, name: str, archive: Path) -> None:
    """Loads an archive as the image ``name``. Raises InvalidInput; Conflict: the archive would replace an image of the
    engine that has another name; WorkloadError."""
    for given_name in await asyncio.to_thread(_names_in, archive):
        if given_name != name and await engine.image(given_name) is not None:
            raise Conflict(f"the archive would replace the image {given_name[:256]} of this engine")
    loaded = ""
    try:
        async for message in engine.load(archive):
            if error := message.get("error"):
                raise WorkloadError(f"the engine does not take the archive: {str(error)[-200:]}")
            for mark in _LOADED_MARKS:
                loaded = loaded or str(message.get("stream", "")).strip().partition(mark)[2]
        if not loaded:
            raise WorkloadError("the engine does not say what it loaded")
        if loaded != name:
            await engine.tag(loaded, name)
    except EngineRefusal as refusal:
        raise WorkloadError(f"the engine does not take the archive: {refusal.message[-200:]}") from None
