"""Probes what an image provides by running a container of it once, and stores the result by the image's id.

A session's runner needs a Python >= 3.8: the image's own, or else the agent's. An image in which neither runs, or
without a shell, is refused with the reason before a container of a session is made.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
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
from ai.backend.node.workload.file_trees import remove_tree
from ai.backend.node.workload.mounts import RUNNER
from ai.backend.plugin.runtime import HOME, RuntimeImage
from ai.backend.runtime.docker import interpreter
from ai.backend.runtime.docker.channel import read_untrusted
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
        python: the interpreter of the runner, as a path in the container; the agent's if ``injected``.
        runtime: the runner's runtime (python, bash, c, app).
        runner: directory of the runner, with byte code for that interpreter, on the host.
        environ: names of variables that the image sets.
        passwd, group: the texts of the image's own files.
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
    """The engine's images, with the directory of the runner, and the agent's Python once it was needed."""

    def __init__(self, engine: Engine, state: DockerState, settings: DockerRuntimeSettings, owner: str) -> None:
        self._engine = engine
        self._state = state
        self._settings = settings
        self._owner = owner
        self._facts: dict[str, ImageFacts] = {}
        self._refused: dict[str, tuple[float, str]] = {}
        self._described: dict[str, Mapping[str, Any]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self.runner = Path()
        self.interpreter: Path | None = None

    async def list(self) -> Sequence[RuntimeImage]:
        """Returns every tag of this engine."""
        images: list[RuntimeImage] = []
        described: dict[str, Mapping[str, Any]] = {}
        for entry in await self._engine.images():
            tags = [tag for tag in entry.get("RepoTags") or () if not tag.startswith(("<none>:<none>", COMMITTING))]
            if not tags:
                continue
            image = self._described.get(entry["Id"]) or await self._engine.image(entry["Id"])
            if image is None:
                continue  # removed meanwhile
            described[entry["Id"]] = image
            images += [_public(tag, image) for tag in tags]
        self._described = described
        return images

    async def facts(self, name: str) -> ImageFacts:
        """Returns the facts of an image. Raises CreationDenied with the reason if it is missing or cannot run here."""
        image = await self._engine.image(name)
        if image is None:
            raise ImageMissing(f"this node has no image {name!r}")
        image_id = str(image["Id"])
        async with self._locks.setdefault(image_id, asyncio.Lock()):
            facts = self._facts.get(image_id) or await asyncio.to_thread(self._read, image_id)
            if facts is None or (facts.injected and await self._interpreter() is None):
                refused_at, problem = self._refused.get(image_id, (0.0, ""))
                if time.monotonic() - refused_at < REFUSAL_KEPT_S and problem:
                    raise CreationDenied(f"the image {name!r} cannot run here: {problem}")
                try:
                    facts = await self._probe(image)
                except _Unfit as unfit:
                    self._refused[image_id] = (time.monotonic(), str(unfit))
                    raise CreationDenied(f"the image {name!r} cannot run here: {unfit}") from None
                await asyncio.to_thread(self._write, facts)
            self._facts[image_id] = facts
            return facts

    # -- facts on disk

    def clean(self, in_use: Collection[str]) -> None:
        """Removes interrupted probes, and files for other runners that are not ``in_use`` by our containers."""
        for place in list(self._state.images.iterdir()):
            is_ours = place.name.endswith(f"-{self.runner.name}") or any(place.name in source for source in in_use)
            if place.name.startswith(".probe-") or not is_ours:
                remove_tree(place)
        runner_files.remove_other_copies(self.runner, in_use)

    def _place(self, image_id: str) -> Path:
        """Returns an image's path. Its name includes the version of the runner, which is compiled for each image."""
        return self._state.images / f"{image_id.removeprefix('sha256:')[:24]}-{self.runner.name}"

    def _read(self, image_id: str) -> ImageFacts | None:
        content = read_json(self._place(image_id) / "facts.json")
        if content is None or content.pop("facts_version", 0) != FACTS_VERSION:
            return None
        try:
            facts = msgspec.convert(content, ImageFacts)
        except msgspec.ValidationError:
            return None
        return facts if Path(facts.runner).is_dir() else None

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
        """Probes an image. Raises _Unfit."""
        architecture = ARCHITECTURES.get(str(image["Architecture"]), str(image["Architecture"]))
        if architecture != platform.machine():
            raise _Unfit(f"it is made for {architecture}, and this node is {platform.machine()}")
        config = image.get("Config") or {}
        labels = config.get("Labels") or {}
        kind = labels.get("ai.backend.runtime-type", "")
        own = labels.get("ai.backend.runtime-path", "") if kind == "python" else ""
        report: ProbeOutput | None = None
        for candidate in filter(None, dict.fromkeys((own, "python3"))):
            report, _ = await self._run_probe(image, candidate)
            if report is not None:
                break
        injected = report is None or report.version[:2] < MIN_PYTHON
        if injected:
            place = await self._interpreter()
            if place is None:
                raise _Unfit("it has no Python 3.8 or newer, and the agent has none to lend (the extra `krunner`)")
            report, why = await self._run_probe(image, f"{interpreter.PLACE}/bin/python3", lent=place)
            if report is None:
                need = f"the agent's own, which needs {interpreter.LIBC}, does not start in it"
                raise _Unfit(f"it has no Python 3.8 or newer, and {need} ({why})")
        assert report is not None
        if not report.shell:
            raise _Unfit("it has no shell")
        return ImageFacts(
            id=str(image["Id"]),
            python=report.python,
            injected=injected,
            runtime=_runtime(kind, has_python=not injected, has_bash=bool(report.bash)),
            shell=report.shell,
            runner=report.runner,
            environ=tuple(line.partition("=")[0] for line in config.get("Env") or ()),
            volumes=tuple(config.get("Volumes") or ()),
            passwd=report.passwd,
            group=report.group,
        )

    async def _run_probe(
        self, image: Mapping[str, Any], python: str, lent: Path | None = None
    ) -> tuple[ProbeOutput | None, str]:
        """Runs a container of the image; returns its report, or None and why if this interpreter does not run in it."""
        folder = await asyncio.to_thread(self._copy_runner)
        mounts = [(str(folder), RUNNER, False)] + ([(str(lent), interpreter.PLACE, True)] if lent else [])
        name = f"backendai-{self._state.instance[:8]}-probe-{os.urandom(4).hex()}"
        container = None
        try:
            container = await self._engine.create(name, self._body(image, python, mounts))
            await self._engine.start(container)
            if not await self._engine.wait(container, PROBE_TIMEOUT_S):
                return None, f"it does not end within {PROBE_TIMEOUT_S:g} s"
            output = await self._engine.logs(container)
            report = _parse(output)
            if report is not None:
                report.runner = str(await asyncio.to_thread(self._adopt, str(image["Id"]), folder))
            return report, " ".join(output.decode(errors="replace").split())[-_WHY_LIMIT:]
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
        volumes = (image.get("Config") or {}).get("Volumes") or ()
        binds = [{"Type": "bind", "Source": a, "Target": b, "ReadOnly": read_only} for a, b, read_only in mounts]
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
                "Mounts": [*({"Type": "tmpfs", "Target": place} for place in volumes), *binds],
                **({"CgroupParent": self._settings.cgroup_parent} if self._settings.cgroup_parent else {}),
            },
        }

    def _copy_runner(self) -> Path:
        """Copies the runner for the image's Python to write byte code into it."""
        folder = self._state.images / f".probe-{os.urandom(6).hex()}"
        shutil.copytree(self.runner, folder, copy_function=shutil.copy2)
        uid, _, gid = self._owner.partition(":")
        if os.geteuid() == 0:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, int(uid), int(gid), follow_symlinks=False)
        return folder

    def _adopt(self, image_id: str, folder: Path) -> Path:
        """Keeps the byte code that the image made beside our sources, for this image alone: it is not trusted."""
        compiled = folder.glob("**/__pycache__/*.pyc")
        made = [path for path in compiled if not (self.runner / path.relative_to(folder)).exists()]
        if not made:
            return self.runner
        place = self._place(image_id)
        target = place / "runner"
        remove_tree(target)
        place.mkdir(mode=0o755, parents=True, exist_ok=True)
        shutil.copytree(self.runner, target, copy_function=shutil.copy2)
        for path in made:
            if (content := read_untrusted(path, 1 << 20)) is not None:
                copy = target / path.relative_to(folder)
                copy.write_bytes(content)
                copy.chmod(0o644)
        return target


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
    """An image cannot run here; the text says why."""


def _runtime(kind: str, *, has_python: bool, has_bash: bool) -> str:
    """Returns the runtime by the image's label if possible, else by what is installed."""
    if kind in RUNTIMES and (kind != "python" or has_python) and (kind != "bash" or has_bash):
        return kind
    if kind and kind not in RUNTIMES:
        return "app"
    return "python" if has_python else "bash" if has_bash else "app"


def _parse(output: bytes) -> ProbeOutput | None:
    for line in output.splitlines():
        if line.startswith(MARK.encode()):
            with suppress(msgspec.DecodeError):  # another line may be the report
                report = msgspec.json.decode(line.removeprefix(MARK.encode()), type=ProbeOutput)
                return report if report.python.startswith("/") else None
    return None


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
    """Returns the image's passwd or group with the session's user, without entries of the same number or name."""
    user = f"work:x:{uid}:{gid}:work:{HOME}:{facts.shell}\n"
    return {
        "/etc/passwd": _without(facts.passwd, uid, 2) + user,
        "/etc/group": _without(facts.group, gid, 2) + f"work:x:{gid}:\n",
    }


def _without(text: str, number: int, place: int) -> str:
    entries = [line.split(":") for line in text.splitlines()]
    others = [e for e in entries if len(e) > place and e[0] != "work" and e[place] != str(number)]
    return "".join(":".join(entry) + "\n" for entry in others)
