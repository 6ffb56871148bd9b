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
    """Returns the names that an archive of ``docker save`` gives to the one image in the archive.

    Raises InvalidInput if the file is not such an archive, or does not contain exactly one image.
    """
    try:
        with tarfile.open(archive) as tar:
            manifest_file = tar.extractfile("manifest.json")
            images = json.loads(manifest_file.read(_MAX_MANIFEST_BYTES)) if manifest_file is not None else []
        [image] = images
        return [str(name) for name in image.get("RepoTags") or ()]
    except (OSError, tarfile.TarError, EOFError, KeyError, ValueError, TypeError, AttributeError) as e:
        raise InvalidInput(f"this is no archive of `docker save` with one image: {e}") from e


async def load_image(engine: Engine, name: str, archive: Path) -> None:
    """Loads the image of an archive of ``docker save`` into the engine under the given name.

    Raises InvalidInput; Conflict: the archive would replace an image of the engine that has another name;
    WorkloadError.
    """
    for archive_name in await asyncio.to_thread(_names_in, archive):
        if archive_name != name and await engine.image(archive_name) is not None:
            raise Conflict(f"the archive would replace the image {archive_name[:256]} of this engine")
    loaded_name = ""
    try:
        async for message in engine.load(archive):
            if error := message.get("error"):
                raise WorkloadError(f"the engine does not take the archive: {str(error)[-200:]}")
            for name_prefix in _LOADED_MARKS:
                loaded_name = loaded_name or str(message.get("stream", "")).strip().partition(name_prefix)[2]
        if not loaded_name:
            raise WorkloadError("the engine does not say what it loaded")
        if loaded_name != name:
            await engine.tag(loaded_name, name)
    except EngineRefusal as refusal:
        raise WorkloadError(f"the engine does not take the archive: {refusal.message[-200:]}") from None
