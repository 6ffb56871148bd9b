"""Defines the port to NVML, NVIDIA's management library (https://docs.nvidia.com/deploy/nvml-api/).

Functions go by NVML's own names and results are JSON values, so that they can be recorded and replayed. Devices are
named by their UUIDs: an adapter turns a UUID into a handle, and a returned handle into a UUID.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Protocol

import msgspec


class Code(IntEnum):
    """Names the values of ``nvmlReturn_t`` that the plugin distinguishes. A test compares them with the library's
    binding.
    """

    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    INSUFFICIENT_RESOURCES = 23
    UNKNOWN = 999


LIBRARY_FAILURES = frozenset({Code.UNINITIALIZED, Code.DRIVER_NOT_LOADED, Code.LIB_RM_VERSION_MISMATCH})
"""Errors after which the library cannot be used until it is opened again."""
DEVICE_FAILURES = frozenset({Code.GPU_IS_LOST, Code.RESET_REQUIRED})
"""Errors after which the device cannot be used."""
SENTENCES = {
    Code.DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
    Code.LIBRARY_NOT_FOUND: "there is no NVIDIA driver here: libnvidia-ml.so.1 was not found",
    Code.NO_PERMISSION: "NVML refuses this user; the agent needs access to /dev/nvidiactl and the GPUs' device files",
    Code.GPU_IS_LOST: "the GPU fell off the bus, or cannot be reached for another reason",
    Code.RESET_REQUIRED: "the GPU needs a reset before it can be used again",
    Code.LIB_RM_VERSION_MISMATCH: "NVIDIA's library and kernel module are of different versions; reboot, or reload the"
    " module",
    Code.IN_USE: "it is in use",
    Code.INSUFFICIENT_RESOURCES: "there is no room for it",
}


class NvmlFailure(Exception):
    """Raised when NVML answers with an error, ``code``. The text is one sentence for people."""

    def __init__(self, code: int, function: str = "") -> None:
        nvml_code = Code(code) if code in set(Code) else Code.UNKNOWN
        super().__init__(
            SENTENCES.get(nvml_code) or f"{function or 'NVML'} failed with error {code} ({nvml_code.name})"
        )
        self.code = code
        self.function = function


class NvmlEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Describes an event of a GPU. ``gpu_instance`` is None where the whole GPU is meant. ``value`` of an Xid event is
    the Xid.
    """

    uuid: str
    kind: int
    value: int
    gpu_instance: int | None = None


XID_CRITICAL = 0x8
DOUBLE_BIT_ECC = 0x2
"""The kinds of events, as bits of ``nvmlEventTypes``."""


class NvmlEvents(Protocol):
    """Represents the events to which a caller has subscribed. Used from one thread."""

    def wait(self, timeout_ms: int) -> NvmlEvent | None:
        """Returns the next event, None if there is none in time. Raises NvmlFailure."""
        ...

    def close(self) -> None: ...


class Nvml(Protocol):
    """Defines the calls of the NVML library. Every call may block.

    One call runs at a time, except calls of the object that ``events`` returned.
    """

    def open(self) -> None:
        """Opens the library. Raises NvmlFailure; PluginError if the binding is not installed."""
        ...

    def close(self) -> None:
        """Closes the library. Safe if it is not open."""
        ...

    def ask(self, function: str, *arguments: str | int) -> Any:
        """Calls a function of NVML by its name. Structures are returned as objects, handles as UUIDs. Raises
        NvmlFailure.
        """
        ...

    def create_instance(self, uuid: str, profile: int) -> None:
        """Creates a GPU instance of this profile id with one compute instance that spans it. Raises NvmlFailure."""
        ...

    def destroy_instance(self, uuid: str, gpu_instance: int, compute_instance: int) -> None:
        """Destroys a compute instance, and its GPU instance if it was the last one there. Raises NvmlFailure."""
        ...

    def events(self, uuids: Sequence[str]) -> NvmlEvents:
        """Subscribes to critical errors of these GPUs, except GPUs that report none. Raises NvmlFailure."""
        ...


def ask_optional(nvml: Nvml, function: str, *arguments: str | int) -> Any:
    """Calls a function of NVML, and returns None if the device, the driver or the user's rights do not support it.

    Raises NvmlFailure: the library or the device is not usable at all.
    """
    try:
        return nvml.ask(function, *arguments)
    except NvmlFailure as e:
        if e.code in LIBRARY_FAILURES | DEVICE_FAILURES:
            raise
        return None


def ask_unless_lost(nvml: Nvml, function: str, *arguments: str | int) -> Any:
    """Calls a function of NVML, and returns None if the function is not supported or the device is lost.

    The health check reports a lost device. Raises NvmlFailure if the library is not usable.
    """
    try:
        return ask_optional(nvml, function, *arguments)
    except NvmlFailure as e:
        if e.code in LIBRARY_FAILURES:
            raise
        return None
