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
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict

from ai.backend.common.errors import CreationDenied, ImageMissing
from ai.backend.common.images import standard_labels
from ai.backend.node.workload import runner_files
from ai.backend.node.workload.directory import read_json, write_json
from ai.backend.node.workload.file_trees import RUNNER, remove_tree
from ai.backend.plugin.runtime import HOME, RuntimeImage
from ai.backend.runtime.docker import interpreter
from ai.backend.runtime.docker.channel import read_untrusted
from ai.backend.runtime.docker.engine import Engine, EngineRefusal
from ai.backend.runtime.docker.image_probe import REPORT_MARK
from ai.backend.runtime.docker.records import INSTANCE_LABEL, PURPOSE_LABEL, DockerState
from ai.backend.runtime.docker.settings import DockerRuntimeSettings

ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Maps the engine's names of machines to ours."""
MIN_PYTHON = (3, 8)
PROBE_TIMEOUT_S = 60.0
PROBE_MEMORY_BYTES = 512 * 1024 * 1024
FACTS_VERSION = 2
COMMIT_PREFIX = "backendai-commit/"
"""Repositories of images that exist only during a commit."""
_MAX_REASON_CHARS = 200
REFUSAL_CACHE_S = 60.0


class ImageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the properties of an image that its containers need.

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
    """Lists and probes the engine's images, and caches the facts of each image."""

    def __init__(self, engine: Engine, state: DockerState, settings: DockerRuntimeSettings, owner: str) -> None:
        self._engine = engine
        self._state = state
        self._settings = settings
        self._owner = owner
        self._facts: dict[str, ImageFacts] = {}
        self._refusals: dict[str, tuple[float, str]] = {}
        self._descriptions: dict[str, Mapping[str, Any]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self.runner = Path()
        self.interpreter: Path | None = None

    async def list(self) -> Sequence[RuntimeImage]:
        """Returns every tag of this engine."""
        images: list[RuntimeImage] = []
        description_by_id: dict[str, Mapping[str, Any]] = {}
        for summary in await self._engine.images():
            tags = [
                tag for tag in summary.get("RepoTags") or () if not tag.startswith(("<none>:<none>", COMMIT_PREFIX))
            ]
            if not tags:
                continue
            description = self._descriptions.get(summary["Id"]) or await self._engine.image(summary["Id"])
            if description is None:
                continue  # removed meanwhile
            description_by_id[summary["Id"]] = description
            images += [_describe_tag(tag, description) for tag in tags]
        self._descriptions = description_by_id
        return images

    async def facts(self, name: str) -> ImageFacts:
        """Returns the facts of an image. Raises CreationDenied with the reason if it is missing or cannot run here."""
        image = await self._engine.image(name)
        if image is None:
            raise ImageMissing(f"this node has no image {name!r}")
        image_id = str(image["Id"])
        async with self._locks.setdefault(image_id, asyncio.Lock()):
            facts = self._facts.get(image_id) or await asyncio.to_thread(self._read_facts, image_id)
            if facts is None or (facts.injected and await self._unpack_interpreter() is None):
                refusal_time, refusal_reason = self._refusals.get(image_id, (0.0, ""))
                if time.monotonic() - refusal_time < REFUSAL_CACHE_S and refusal_reason:
                    raise CreationDenied(f"the image {name!r} cannot run here: {refusal_reason}")
                try:
                    facts = await self._probe_image(image)
                except _UnfitImage as unfit:
                    self._refusals[image_id] = (time.monotonic(), str(unfit))
                    raise CreationDenied(f"the image {name!r} cannot run here: {unfit}") from None
                await asyncio.to_thread(self._write_facts, facts)
            self._facts[image_id] = facts
            return facts

    # -- facts on disk

    def clean(self, used_paths: Collection[str]) -> None:
        """Removes the folders of interrupted probes, and unused folders for other versions of the runner.

        A folder is used if a path of ``used_paths`` contains it.
        """
        for image_folder in list(self._state.images.iterdir()):
            is_used = image_folder.name.endswith(f"-{self.runner.name}") or any(
                image_folder.name in used_path for used_path in used_paths
            )
            if image_folder.name.startswith(".probe-") or not is_used:
                remove_tree(image_folder)
        runner_files.remove_other_copies(self.runner, used_paths)

    def _image_folder(self, image_id: str) -> Path:
        """Returns the folder of an image's facts and compiled runner; its name includes the runner's version."""
        return self._state.images / f"{image_id.removeprefix('sha256:')[:24]}-{self.runner.name}"

    def _read_facts(self, image_id: str) -> ImageFacts | None:
        content = read_json(self._image_folder(image_id) / "facts.json")
        if content is None or content.pop("facts_version", 0) != FACTS_VERSION:
            return None
        try:
            facts = msgspec.convert(content, ImageFacts)
        except msgspec.ValidationError:
            return None
        return facts if Path(facts.runner).is_dir() else None

    def _write_facts(self, facts: ImageFacts) -> None:
        image_folder = self._image_folder(facts.id)
        image_folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        write_json(image_folder / "facts.json", {**asdict(facts), "facts_version": FACTS_VERSION})

    # -- the probe

    async def _unpack_interpreter(self) -> Path | None:
        if self.interpreter is None:
            interpreters_folder = self._settings.interpreter_directory or self._state.path / "interpreter"
            self.interpreter = await asyncio.to_thread(interpreter.unpack, interpreters_folder)
        return self.interpreter

    async def _probe_image(self, image: Mapping[str, Any]) -> ImageFacts:
        """Runs containers of an image to learn its facts. Raises _UnfitImage."""
        architecture = ARCHITECTURES.get(str(image["Architecture"]), str(image["Architecture"]))
        if architecture != platform.machine():
            raise _UnfitImage(f"it is made for {architecture}, and this node is {platform.machine()}")
        config = image.get("Config") or {}
        labels = config.get("Labels") or {}
        labelled_runtime = labels.get("ai.backend.runtime-type", "")
        labelled_python = labels.get("ai.backend.runtime-path", "") if labelled_runtime == "python" else ""
        report: ProbeOutput | None = None
        for python_candidate in filter(None, dict.fromkeys((labelled_python, "python3"))):
            report, _ = await self._run_probe(image, python_candidate)
            if report is not None:
                break
        is_injected = report is None or report.version[:2] < MIN_PYTHON
        if is_injected:
            interpreter_folder = await self._unpack_interpreter()
            if interpreter_folder is None:
                raise _UnfitImage("it has no Python 3.8 or newer, and the agent has none to lend (the extra `krunner`)")
            report, reason = await self._run_probe(
                image, f"{interpreter.CONTAINER_PATH}/bin/python3", interpreter_folder=interpreter_folder
            )
            if report is None:
                explanation = f"the agent's own, which needs {interpreter.REQUIRED_LIBC}, does not start in it"
                raise _UnfitImage(f"it has no Python 3.8 or newer, and {explanation} ({reason})")
        assert report is not None
        if not report.shell:
            raise _UnfitImage("it has no shell")
        return ImageFacts(
            id=str(image["Id"]),
            python=report.python,
            injected=is_injected,
            runtime=choose_runtime(labelled_runtime, has_python=not is_injected, has_bash=bool(report.bash)),
            shell=report.shell,
            runner=report.runner,
            environ=tuple(variable.partition("=")[0] for variable in config.get("Env") or ()),
            volumes=tuple(config.get("Volumes") or ()),
            passwd=report.passwd,
            group=report.group,
        )

    async def _run_probe(
        self, image: Mapping[str, Any], python_path: str, interpreter_folder: Path | None = None
    ) -> tuple[ProbeOutput | None, str]:
        """Runs the probe in a container of the image, with one Python interpreter, and returns the probe's report.

        Returns None and the reason if this interpreter does not run in the image.
        """
        runner_copy = await asyncio.to_thread(self._copy_runner)
        mounts = [(str(runner_copy), RUNNER, False)] + (
            [(str(interpreter_folder), interpreter.CONTAINER_PATH, True)] if interpreter_folder else []
        )
        container_name = f"backendai-{self._state.instance[:8]}-probe-{os.urandom(4).hex()}"
        container_id = None
        try:
            container_id = await self._engine.create(
                container_name, self._probe_container_body(image, python_path, mounts)
            )
            await self._engine.start(container_id)
            if not await self._engine.wait(container_id, PROBE_TIMEOUT_S):
                return None, f"it does not end within {PROBE_TIMEOUT_S:g} s"
            probe_log = await self._engine.logs(container_id)
            report = _parse_report(probe_log)
            if report is not None:
                report.runner = str(await asyncio.to_thread(self._adopt_byte_code, str(image["Id"]), runner_copy))
            return report, " ".join(probe_log.decode(errors="replace").split())[-_MAX_REASON_CHARS:]
        except EngineRefusal as refusal:
            if refusal.status not in (400, 500):
                raise
            return None, refusal.message[-_MAX_REASON_CHARS:]
        finally:
            if container_id is not None:
                await asyncio.shield(self._engine.remove(container_id))
            await asyncio.to_thread(remove_tree, runner_copy)

    def _probe_container_body(
        self, image: Mapping[str, Any], python_path: str, mounts: Sequence[tuple[str, str, bool]]
    ) -> dict[str, Any]:
        script = Path(__file__).with_name("image_probe.py").read_text(encoding="utf-8")
        volume_paths = (image.get("Config") or {}).get("Volumes") or ()
        binds = [
            {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only}
            for source, target, read_only in mounts
        ]
        return {
            "Image": str(image["Id"]),
            "Entrypoint": [python_path, "-I", "-S", "-c", script, RUNNER],
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
                "Memory": PROBE_MEMORY_BYTES,
                "MemorySwap": PROBE_MEMORY_BYTES,
                "PidsLimit": 64,
                "Mounts": [*({"Type": "tmpfs", "Target": volume} for volume in volume_paths), *binds],
                **({"CgroupParent": self._settings.cgroup_parent} if self._settings.cgroup_parent else {}),
            },
        }

    def _copy_runner(self) -> Path:
        """Copies the runner for the image's Python to write byte code into it."""
        runner_copy = self._state.images / f".probe-{os.urandom(6).hex()}"
        shutil.copytree(self.runner, runner_copy, copy_function=shutil.copy2)
        uid, _, gid = self._owner.partition(":")
        if os.geteuid() == 0:
            for path in (runner_copy, *runner_copy.rglob("*")):
                os.chown(path, int(uid), int(gid), follow_symlinks=False)
        return runner_copy

    def _adopt_byte_code(self, image_id: str, runner_copy: Path) -> Path:
        """Copies the runner, with the byte code that a probe has compiled, into the image's folder; returns the copy.

        The copy serves this image alone. Returns the path of the shared runner if the probe compiled no new byte code.
        """
        byte_code_paths = runner_copy.glob("**/__pycache__/*.pyc")
        new_byte_code = [path for path in byte_code_paths if not (self.runner / path.relative_to(runner_copy)).exists()]
        if not new_byte_code:
            return self.runner
        image_folder = self._image_folder(image_id)
        adopted_runner = image_folder / "runner"
        remove_tree(adopted_runner)
        image_folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        shutil.copytree(self.runner, adopted_runner, copy_function=shutil.copy2)
        for path in new_byte_code:
            if (byte_code := read_untrusted(path, 1 << 20)) is not None:
                adopted_path = adopted_runner / path.relative_to(runner_copy)
                adopted_path.write_bytes(byte_code)
                adopted_path.chmod(0o644)
        return adopted_runner


class ProbeOutput(msgspec.Struct):
    """Holds the report that a container of the probed image printed. The image may be hostile."""

    python: str
    version: tuple[int, int, int]
    bash: str
    shell: str
    passwd: str
    group: str
    runner: str = ""


class _UnfitImage(Exception):
    """Reports an image that cannot run on this node, with the reason as text."""


def choose_runtime(label: str, *, has_python: bool, has_bash: bool) -> str:
    """Returns the runner's runtime by the image's label, else by the installed interpreters.

    A labelled language without an interpreter for its snippets becomes `app`: code is never run as another language.
    """
    if label:
        return "app" if (label == "python" and not has_python) or (label == "bash" and not has_bash) else label
    return "python" if has_python else "bash" if has_bash else "app"


def _parse_report(probe_log: bytes) -> ProbeOutput | None:
    for line in probe_log.splitlines():
        if line.startswith(REPORT_MARK.encode()):
            with suppress(msgspec.DecodeError):  # another line may be the report
                report = msgspec.json.decode(line.removeprefix(REPORT_MARK.encode()), type=ProbeOutput)
                return report if report.python.startswith("/") else None
    return None


def _describe_tag(tag: str, description: Mapping[str, Any]) -> RuntimeImage:
    digests = [digest.partition("@")[2] for digest in description.get("RepoDigests") or ()]
    architecture = str(description.get("Architecture", ""))
    labels = (description.get("Config") or {}).get("Labels") or {}
    return RuntimeImage(
        name=tag,
        architecture=ARCHITECTURES.get(architecture, architecture),
        digest=digests[0] if digests else str(description["Id"]),
        size_bytes=int(description.get("Size") or 0),
        labels=standard_labels(labels),
        aliases=(tag.removesuffix(":latest"),) if tag.endswith(":latest") else (),
    )


def etc_files(facts: ImageFacts, uid: int, gid: int) -> dict[str, str]:
    """Returns an image's /etc/passwd and /etc/group with an entry for the session's user added.

    Entries of the image with the same number or name are left out.
    """
    passwd_line = f"work:x:{uid}:{gid}:work:{HOME}:{facts.shell}\n"
    return {
        "/etc/passwd": _without_user(facts.passwd, uid, 2) + passwd_line,
        "/etc/group": _without_user(facts.group, gid, 2) + f"work:x:{gid}:\n",
    }


def _without_user(etc_text: str, user_or_group_id: int, column: int) -> str:
    entries = [line.split(":") for line in etc_text.splitlines()]
    kept_entries = [
        entry
        for entry in entries
        if len(entry) > column and entry[0] != "work" and entry[column] != str(user_or_group_id)
    ]
    return "".join(":".join(entry) + "\n" for entry in kept_entries)
