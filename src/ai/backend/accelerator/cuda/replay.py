"""Records and replays answers of NVML and of the node.

A recording is JSON::

    {"format": 1,
     "origin": {"kind": "recorded" | "written", "hardware": ..., "driver": ..., "command": ..., "date": ...},
     "answers": {"nvmlDeviceGetCount": 1, "nvmlDeviceGetName GPU-...": "...",
                 "nvmlDeviceGetNvLinkState * 0": {"nvml_error": 3}},
     "files": {"/sys/bus/pci/devices/0000:07:00.0/numa_node": "0"},
     "libraries": {"libcuda.so.1": "/usr/lib/.../libcuda.so.550.54.15"},
     "programs": {"nvidia-smi": "/usr/bin/nvidia-smi"}, "groups": {"/dev/nvidia0": 44}}

A query is written as its function and arguments. ``*`` stands for any argument; the answer with the fewest of them
counts. What was not asked of the machine is answered as not supported.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Self

from ai.backend.accelerator.cuda.host import Host
from ai.backend.accelerator.cuda.nvml import Code, Nvml, NvmlEvent, NvmlEvents, NvmlFailure
from ai.backend.common.errors import InvalidInput

FORMAT = 1
_ERROR_KEY = "nvml_error"


def query_text(function: str, *arguments: str | int) -> str:
    return " ".join([function, *map(str, arguments)])


@dataclass(slots=True)
class Recording:
    """Answers calls of NVML from a recording."""

    origin: dict[str, str] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    libraries: dict[str, str] = field(default_factory=dict)
    programs: dict[str, str] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Loads a recording from a file. Raises InvalidInput."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
                raise InvalidInput(f"{path} is no recording of format {FORMAT}")
            return cls(**data)
        except (OSError, ValueError, TypeError) as e:
            raise InvalidInput(f"{path} is no recording: {e}") from None

    def dump(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1, ensure_ascii=False) + "\n"


class ReplayNvml:
    """Implements the port ``Nvml`` over a recording. ``opens_with`` makes :meth:`open` fail with that code."""

    def __init__(self, recording: Recording, *, opens_with: int | None = None) -> None:
        self.recording = recording
        self.opens_with = opens_with
        self.is_open = False
        self.pending: list[NvmlEvent | NvmlFailure] = []
        """The events and failures that the next waits for events return."""

    def open(self) -> None:
        if self.opens_with is not None:
            raise NvmlFailure(self.opens_with, "nvmlInit")
        self.is_open = True

    def close(self) -> None:
        self.is_open = False

    def ask(self, function: str, *arguments: str | int) -> Any:
        if not self.is_open:
            raise NvmlFailure(Code.UNINITIALIZED, function)
        argument_texts = [str(argument) for argument in arguments]
        argument_patterns = sorted(
            product(*((text, "*") for text in argument_texts)), key=lambda choice: choice.count("*")
        )
        for pattern in argument_patterns:
            answer_key = query_text(function, *pattern)
            if answer_key in self.recording.answers:
                answer = self.recording.answers[answer_key]
                if isinstance(answer, dict) and _ERROR_KEY in answer:
                    raise NvmlFailure(int(answer[_ERROR_KEY]), function)
                return answer
        raise NvmlFailure(Code.NOT_SUPPORTED, function)

    def create_instance(self, uuid: str, profile: int) -> None:
        raise NvmlFailure(Code.NO_PERMISSION, "nvmlDeviceCreateGpuInstance")

    def destroy_instance(self, uuid: str, gpu_instance: int, compute_instance: int) -> None:
        raise NvmlFailure(Code.NO_PERMISSION, "nvmlGpuInstanceDestroy")

    def events(self, uuids: Sequence[str]) -> NvmlEvents:
        return _ReplayEvents(self.pending)


@dataclass
class _ReplayEvents:
    pending: list[NvmlEvent | NvmlFailure]

    def wait(self, timeout_ms: int) -> NvmlEvent | None:
        event_or_failure = self.pending.pop(0) if self.pending else None
        if isinstance(event_or_failure, NvmlFailure):
            raise event_or_failure
        return event_or_failure

    def close(self) -> None:
        pass


@dataclass
class ReplayHost(Host):
    """Answers the calls of a host from a recording. A file exists if the recording has it."""

    recording: Recording

    def read(self, path: str) -> str | None:
        return self.recording.files.get(path)

    def exists(self, path: str) -> bool:
        return path in self.recording.files

    def closed_group(self, path: str) -> int | None:
        return self.recording.groups.get(path)

    def loader_cache(self) -> Mapping[str, str]:
        return self.recording.libraries

    def resolve(self, path: str) -> str:
        return path

    def program(self, name: str) -> str | None:
        return self.recording.programs.get(name)


class RecordingNvml:
    """Forwards calls to another NVML and records the answers."""

    def __init__(self, nvml: Nvml, recording: Recording) -> None:
        self._inner = nvml
        self._recording = recording
        self.open, self.close = nvml.open, nvml.close
        self.create_instance, self.destroy_instance = nvml.create_instance, nvml.destroy_instance
        self.events: Callable[[Sequence[str]], NvmlEvents] = nvml.events

    def ask(self, function: str, *arguments: str | int) -> Any:
        answer_key = query_text(function, *arguments)
        try:
            answer = self._inner.ask(function, *arguments)
        except NvmlFailure as e:
            self._recording.answers[answer_key] = {_ERROR_KEY: e.code}
            raise
        self._recording.answers[answer_key] = answer
        return answer


@dataclass
class RecordingHost(Host):
    """Forwards calls to another host and records the answers."""

    inner: Host
    recording: Recording

    def read(self, path: str) -> str | None:
        text = self.inner.read(path)
        if text is not None:
            self.recording.files[path] = text
        return text

    def exists(self, path: str) -> bool:
        exists = self.inner.exists(path)
        if exists:
            self.recording.files.setdefault(path, "")
        return exists

    def closed_group(self, path: str) -> int | None:
        group = self.inner.closed_group(path)
        if group is not None:
            self.recording.groups[path] = group
        return group

    def loader_cache(self) -> Mapping[str, str]:
        cache = self.inner.loader_cache()
        self.recording.libraries |= {
            name: self.resolve(path) for name, path in cache.items() if "nv" in name or "cuda" in name
        }
        return cache

    def program(self, name: str) -> str | None:
        path = self.inner.program(name)
        if path is not None:
            self.recording.programs[name] = path
        return path
