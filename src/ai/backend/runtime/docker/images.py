"""Probes what an image provides by running a container of it once, and stores the result by the image's id.

A session's runner needs a Python >= 3.8: the image's own, or else the agent's (``interpreter``). An image in which
neither runs, or without a shell, is refused with the reason before a container of a session is made.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import stat
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from ai.backend.common.errors import CreationDenied, ImageMissing
from ai.backend.common.images import standard_labels
from ai.backend.node.workload import runner_files
from ai.backend.node.workload.directory import read_json, write_json
from ai.backend.node.workload.file_trees import RUNNER, remove_tree
from ai.backend.plugin.runtime import HOME, RuntimeImage
from ai.backend.runtime.docker import interpreter
from ai.backend.runtime.docker.engine import Engine, EngineRefusal
from ai.backend.runtime.docker.image_probe import MARK
from ai.backend.runtime.docker.records import INSTANCE_LABEL, PURPOSE_LABEL, DockerState
from ai.backend.runtime.docker.settings import DockerRuntimeSettings

ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Maps the engine's names of machines to ours."""
RUNTIMES = ("python", "bash", "c", "app")
MIN_PYTHON = (3, 8)
PROBE_TIMEOUT_S = 60.0
PROBE_MEMORY = 512 * 1024 * 1024
FACTS_VERSION = 2
COMMITTING = "backendai-commit/"
"""Repositories of images that exist only during a commit."""
_WHY_LIMIT = 200
REFUSAL_KEPT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFacts:
    """The properties of an image that its containers need.

    Attributes:
        id: the image's own, so that a tag that moves meanwhile changes nothing.
        python: the interpreter of the runner, as a path in the container.
        injected: that is the agent's, and its directory must be mounted.
        runtime: the runner's runtime (python, bash, c, app).
        runner: directory of the runner, with byte code for that interpreter, on the host.
        environ: names of variables that the image sets.
        volumes: where the image wants volumes.
        passwd, group: the image's own.
    """

    id: str
    python: str
    injected: bool
    runtime: str
    shell: str
    runner: str
    environ: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    passwd: str = ""
    group: str = ""


class Images:
    """The engine's images.

    ``runner`` is the directory of the runner and the relay, ``interpreter`` the agent's Python, once it was needed.
    """

    def __init__(self, engine: Engine, state: DockerState, settings: DockerRuntimeSettings, owner: str) -> None:
        self._engine = engine
        self._state = state
        self._settings = settings
        self._owner = owner
        self._known: dict[str, ImageFacts] = {}
        self._refused: dict[str, tuple[float, str]] = {}
        self._described: dict[str, Mapping[str, Any]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self.runner = Path()
        self.interpreter: Path | None = None

    async def list(self) -> Sequence[RuntimeImage]:
        """Return every tag of this engine."""
        found: list[RuntimeImage] = []
        described: dict[str, Mapping[str, Any]] = {}
        for entry in await self._engine.images():
            tags = [
                tag for tag in entry.get("RepoTags") or () if tag != "<none>:<none>" and not tag.startswith(COMMITTING)
            ]
            if not tags:
                continue
            image = self._described.get(entry["Id"]) or await self._engine.image(entry["Id"])
            if image is None:
                continue  # removed meanwhile
            described[entry["Id"]] = image
            found += [_public(tag, image) for tag in tags]
        self._described = described
        return found

    async def facts(self, name: str) -> ImageFacts:
        """Return the facts of an image. Raises CreationDenied with the reason if it is missing or cannot run here."""
        image = await self._engine.image(name)
        if image is None:
            raise ImageMissing(f"this node has no image {name!r}")
        image_id = str(image["Id"])
        async with self._locks.setdefault(image_id, asyncio.Lock()):
            known = self._known.get(image_id) or await asyncio.to_thread(self._read, image_id)
            if known is not None and known.injected and await self._interpreter() is None:
                known = None
            if known is None:
                refused_at, problem = self._refused.get(image_id, (0.0, ""))
                if time.monotonic() - refused_at < REFUSAL_KEPT_S and problem:
                    raise CreationDenied(f"the image {name!r} cannot run here: {problem}")
                try:
                    known = await self._probe(image)
                except _Unfit as unfit:
                    self._refused[image_id] = (time.monotonic(), str(unfit))
                    raise CreationDenied(f"the image {name!r} cannot run here: {unfit}") from None
                await asyncio.to_thread(self._write, known)
            self._known[image_id] = known
            return known

    # -- what is remembered on disk

    def clean(self, in_use: Collection[str]) -> None:
        """Remove what cut-off probes left, and what other versions of the runner needed and no container of ours does.

        Args:
            in_use: what containers of ours have mounted.
        """
        for place in list(self._state.images.iterdir()):
            is_ours = place.name.endswith(f"-{self.runner.name}") or any(place.name in source for source in in_use)
            if place.name.startswith(".probe-") or not is_ours:
                remove_tree(place)
        runner_files.remove_other_copies(self.runner, in_use)

    def _place(self, image_id: str) -> Path:
        """Return an image's path. Its name includes the version of the runner, which is compiled for each image."""
        return self._state.images / f"{image_id.removeprefix('sha256:')[:24]}-{self.runner.name}"

    def _read(self, image_id: str) -> ImageFacts | None:
        content = read_json(self._place(image_id) / "facts.json")
        if content is None or content.pop("facts_version", 0) != FACTS_VERSION:
            return None
        try:
            found = msgspec.convert(content, ImageFacts)
        except msgspec.ValidationError:
            return None
        return found if Path(found.runner).is_dir() else None

    def _write(self, facts: ImageFacts) -> None:
        place = self._place(facts.id)
        place.mkdir(mode=0o755, parents=True, exist_ok=True)
        write_json(place / "facts.json", {**asdict(facts), "facts_version": FACTS_VERSION})

    # -- the probe

    async def _interpreter(self) -> Path | None:
        if self.interpreter is None:
            place = self._settings.interpreter_directory or self._state.path / "interpreter"
            self.interpreter = await asyncio.to_thread(interpreter.unpack, place)
        return self.interpreter

    async def _probe(self, image: Mapping[str, Any]) -> ImageFacts:
        """Probe an image. Raises _Unfit."""
        architecture = ARCHITECTURES.get(str(image["Architecture"]), str(image["Architecture"]))
        if architecture != platform.machine():
            raise _Unfit(f"it is made for {architecture}, and this node is {platform.machine()}")
        config = image.get("Config") or {}
        labels = config.get("Labels") or {}
        kind = labels.get("ai.backend.runtime-type", "")
        own = labels.get("ai.backend.runtime-path", "") if kind == "python" else ""
        said: ProbeOutput | None = None
        for candidate in filter(None, dict.fromkeys((own, "python3"))):
            said, _ = await self._ask(image, candidate)
            if said is not None:
                break
        injected = said is None or said.version[:2] < MIN_PYTHON
        if injected:
            place = await self._interpreter()
            if place is None:
                raise _Unfit("it has no Python 3.8 or newer, and the agent has none to lend (the extra `krunner`)")
            said, why = await self._ask(image, f"{interpreter.PLACE}/bin/python3", lent=place)
            if said is None:
                need = f"the agent's own, which needs {interpreter.LIBC}, does not start in it"
                raise _Unfit(f"it has no Python 3.8 or newer, and {need} ({why})")
        assert said is not None
        if not said.shell:
            raise _Unfit("it has no shell")
        return ImageFacts(
            id=str(image["Id"]),
            python=said.python,
            injected=injected,
            runtime=_runtime(kind, has_python=not injected, has_bash=bool(said.bash)),
            shell=said.shell,
            runner=said.runner,
            environ=tuple(line.partition("=")[0] for line in config.get("Env") or ()),
            volumes=tuple(config.get("Volumes") or ()),
            passwd=said.passwd,
            group=said.group,
        )

    async def _ask(
        self, image: Mapping[str, Any], python: str, lent: Path | None = None
    ) -> tuple[ProbeOutput | None, str]:
        """Run a container of the image; return its report, or None and why if this interpreter does not run in it."""
        folder = await asyncio.to_thread(self._lay_out)
        mounts = [(str(folder), RUNNER, False)] + ([(str(lent), interpreter.PLACE, True)] if lent else [])
        name = f"backendai-{self._state.instance[:8]}-probe-{os.urandom(4).hex()}"
        container = None
        try:
            container = await self._engine.create(name, self._body(image, python, mounts))
            await self._engine.start(container)
            if not await self._engine.wait(container, PROBE_TIMEOUT_S):
                return None, f"it does not end within {PROBE_TIMEOUT_S:g} s"
            output = await self._engine.logs(container)
            said = _answer(output)
            if said is not None:
                said.runner = str(await asyncio.to_thread(self._adopt, str(image["Id"]), folder))
            return said, " ".join(output.decode(errors="replace").split())[-_WHY_LIMIT:]
        except EngineRefusal as refusal:
            if refusal.status not in (400, 500):
                raise
            return None, refusal.message[-_WHY_LIMIT:]
        finally:
            if container is not None:
                await asyncio.shield(self._engine.remove(container))
            await asyncio.to_thread(remove_tree, folder)

    def _body(self, image: Mapping[str, Any], python: str, mounts: Sequence[tuple[str, str, bool]]) -> dict[str, Any]:
        script = Path(__file__).with_name("image_probe.py").read_text(encoding="utf-8")
        return {
            "Image": str(image["Id"]),
            "Entrypoint": [python, "-I", "-S", "-c", script, RUNNER],
            "Cmd": [],
            "User": self._owner,
            "WorkingDir": "/",
            "Labels": {INSTANCE_LABEL: self._state.instance, PURPOSE_LABEL: "probe"},
            "Healthcheck": {"Test": ["NONE"]},
            "HostConfig": {
                "NetworkMode": "none",
                "ReadonlyRootfs": True,
                "CapDrop": ["ALL"],
                "SecurityOpt": ["no-new-privileges"],
                "Memory": PROBE_MEMORY,
                "MemorySwap": PROBE_MEMORY,
                "PidsLimit": 64,
                "Mounts": [
                    *({"Type": "tmpfs", "Target": place} for place in (image.get("Config") or {}).get("Volumes") or ()),
                    *(
                        {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only}
                        for source, target, read_only in mounts
                    ),
                ],
                **({"CgroupParent": self._settings.cgroup_parent} if self._settings.cgroup_parent else {}),
            },
        }

    def _lay_out(self) -> Path:
        """Copy the runner for the image's Python to write byte code into it."""
        folder = self._state.images / f".probe-{os.urandom(6).hex()}"
        shutil.copytree(self.runner, folder, copy_function=shutil.copy2)
        uid, _, gid = self._owner.partition(":")
        if os.geteuid() == 0:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, int(uid), int(gid), follow_symlinks=False)
        return folder

    def _adopt(self, image_id: str, folder: Path) -> Path:
        """Keep the byte code that the image made beside our sources, for this image alone: it is not trusted."""
        made = [path for path in folder.glob("**/__pycache__/*.pyc") if not self._has(path.relative_to(folder))]
        if not made:
            return self.runner
        place = self._place(image_id)
        target = place / "runner"
        remove_tree(target)
        place.mkdir(mode=0o755, parents=True, exist_ok=True)
        shutil.copytree(self.runner, target, copy_function=shutil.copy2)
        for path in made:
            content = _read_plain(path)
            if content is not None:
                copy = target / path.relative_to(folder)
                copy.write_bytes(content)
                copy.chmod(0o644)
        return target

    def _has(self, relative: Path) -> bool:
        return (self.runner / relative).exists()


class ProbeOutput(msgspec.Struct):
    """The report of a container of an image. The image may be hostile: nothing else is believed."""

    python: str
    version: tuple[int, int, int]
    bash: str
    shell: str
    passwd: str
    group: str
    runner: str = ""


class _Unfit(Exception):
    """Why an image cannot run here."""


def _runtime(kind: str, *, has_python: bool, has_bash: bool) -> str:
    """Return the runtime by the image's label if possible, else by what is installed."""
    if kind in RUNTIMES and (kind != "python" or has_python) and (kind != "bash" or has_bash):
        return kind
    if kind and kind not in RUNTIMES:
        return "app"
    return "python" if has_python else "bash" if has_bash else "app"


def _answer(output: bytes) -> ProbeOutput | None:
    for line in output.splitlines():
        if line.startswith(MARK.encode()):
            with suppress(msgspec.DecodeError):
                said = msgspec.json.decode(line.removeprefix(MARK.encode()), type=ProbeOutput)
                return said if said.python.startswith("/") else None
    return None


def _read_plain(path: Path) -> bytes | None:
    """Read a regular file that an untrusted program wrote; None for anything else."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        return file.read(1 << 20) if stat.S_ISREG(os.fstat(fd).st_mode) else None


def _public(tag: str, image: Mapping[str, Any]) -> RuntimeImage:
    digests = [digest.partition("@")[2] for digest in image.get("RepoDigests") or ()]
    architecture = str(image.get("Architecture", ""))
    labels = (image.get("Config") or {}).get("Labels") or {}
    return RuntimeImage(
        name=tag,
        architecture=ARCHITECTURES.get(architecture, architecture),
        digest=digests[0] if digests else str(image["Id"]),
        size_bytes=int(image.get("Size") or 0),
        labels=standard_labels(labels),
        aliases=(tag.removesuffix(":latest"),) if tag.endswith(":latest") else (),
    )


def etc_files(facts: ImageFacts, uid: int, gid: int) -> dict[str, str]:
    """Return the image's passwd or group with the session's user, without entries of the same number or name."""
    user = f"work:x:{uid}:{gid}:work:{HOME}:{facts.shell}\n"
    return {
        "/etc/passwd": _without(facts.passwd, uid, 2) + user,
        "/etc/group": _without(facts.group, gid, 2) + f"work:x:{gid}:\n",
    }


def _without(text: str, number: int, place: int) -> str:
    kept = []
    for line in text.splitlines():
        fields = line.split(":")
        if len(fields) > place and fields[0] != "work" and fields[place] != str(number):
            kept.append(line + "\n")
    return "".join(kept)
