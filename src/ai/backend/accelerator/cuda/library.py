"""Implements the port to NVML by NVIDIA's own binding: the package ``nvidia-ml-py``, module ``pynvml``."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from ai.backend.accelerator.cuda.nvml import DOUBLE_BIT_ECC, XID_CRITICAL, Code, NvmlEvent, NvmlFailure
from ai.backend.common.errors import PluginError

NO_INSTANCE = 0xFFFFFFFF
UUID_PREFIXES = ("GPU-", "MIG-")


class NvmlLibrary:
    """Implements the port ``Nvml``. The binding is imported by :meth:`open`, so that the plugin loads without it."""

    def __init__(self) -> None:
        self._module: ModuleType | None = None
        self._handles: dict[str, Any] = {}

    @property
    def _nvml(self) -> ModuleType:
        if self._module is None:
            raise NvmlFailure(Code.UNINITIALIZED)
        return self._module

    def open(self) -> None:
        if self._module is not None:
            return
        try:
            import pynvml  # type: ignore[import-untyped,unused-ignore]  # the binding has no types
        except ImportError:
            raise PluginError("the package nvidia-ml-py is not installed: pip install 'backendai[cuda]'") from None
        _call(pynvml, "nvmlInit")
        self._module = pynvml

    def close(self) -> None:
        module, self._module = self._module, None
        self._handles.clear()
        if module is not None:
            with contextlib.suppress(NvmlFailure):
                _call(module, "nvmlShutdown")

    def ask(self, function: str, *arguments: str | int) -> Any:
        if not hasattr(self._nvml, function):
            raise NvmlFailure(Code.FUNCTION_NOT_FOUND, function)
        if function == "nvmlDeviceGetGpuFabricInfoV":
            return self._fabric_info(*map(self._argument, arguments))
        try:
            return self._plain(_call(self._nvml, function, *map(self._argument, arguments)))
        except NvmlFailure:
            # A handle may be of a device that was reset or cut anew: the next question looks it up again.
            self._handles.clear()
            raise

    def _fabric_info(self, handle: Any) -> dict[str, Any]:
        """Returns the id and the state of the NVLink fabric of a GPU.

        NVML writes this answer into a structure, as it does in no other function.
        """
        info = self._nvml.c_nvmlGpuFabricInfo_v2_t()
        _call(self._nvml, "nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info))
        return {
            "clusterUuid": bytes(info.clusterUuid).hex(),
            "cliqueId": int(info.cliqueId),
            "state": int(info.state),
            "status": int(info.status),
        }

    def _argument(self, value: str | int) -> Any:
        if isinstance(value, str) and value.startswith(UUID_PREFIXES):
            return self._handle(value)
        return value

    def _handle(self, uuid: str) -> Any:
        if uuid not in self._handles:
            self._handles[uuid] = _call(self._nvml, "nvmlDeviceGetHandleByUUID", uuid.encode())
        return self._handles[uuid]

    def _plain(self, answer: Any) -> Any:
        if isinstance(answer, self._nvml.c_nvmlDevice_t):
            uuid = str(_text(_call(self._nvml, "nvmlDeviceGetUUID", answer)))
            self._handles[uuid] = answer
            return uuid
        return plain(answer)

    def create_instance(self, uuid: str, profile: int) -> None:
        nvml = self._nvml
        instance = _call(nvml, "nvmlDeviceCreateGpuInstance", self._handle(uuid), profile)
        try:
            _call(nvml, "nvmlGpuInstanceCreateComputeInstance", instance, self._spanning_profile(instance))
        except NvmlFailure:
            with contextlib.suppress(NvmlFailure):
                _call(nvml, "nvmlGpuInstanceDestroy", instance)
            raise

    def _spanning_profile(self, instance: Any) -> int:
        """Returns the id of the largest compute profile of a GPU instance, which takes the whole instance."""
        nvml = self._nvml
        profile_sizes: dict[int, int] = {}
        for profile in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            with contextlib.suppress(NvmlFailure):
                info = _call(nvml, "nvmlGpuInstanceGetComputeInstanceProfileInfo", instance, profile, 0)
                profile_sizes.setdefault(int(info.sliceCount), int(info.id))
        if not profile_sizes:
            raise NvmlFailure(Code.NOT_SUPPORTED, "nvmlGpuInstanceGetComputeInstanceProfileInfo")
        return profile_sizes[max(profile_sizes)]

    def destroy_instance(self, uuid: str, gpu_instance: int, compute_instance: int) -> None:
        nvml = self._nvml
        self._handles.clear()
        instance = _call(nvml, "nvmlDeviceGetGpuInstanceById", self._handle(uuid), gpu_instance)
        compute_handle = _call(nvml, "nvmlGpuInstanceGetComputeInstanceById", instance, compute_instance)
        _call(nvml, "nvmlComputeInstanceDestroy", compute_handle)
        try:
            _call(nvml, "nvmlGpuInstanceDestroy", instance)
        except NvmlFailure as e:
            if e.code != Code.IN_USE:  # it is while it has other compute instances
                raise

    def events(self, uuids: Sequence[str]) -> LibraryEvents:
        nvml = self._nvml
        event_set = _call(nvml, "nvmlEventSetCreate")
        count = 0
        for uuid in uuids:
            with contextlib.suppress(NvmlFailure):
                handle = self._handle(uuid)
                mask = _call(nvml, "nvmlDeviceGetSupportedEventTypes", handle)
                _call(nvml, "nvmlDeviceRegisterEvents", handle, mask & (XID_CRITICAL | DOUBLE_BIT_ECC), event_set)
                count += 1
        return LibraryEvents(nvml, event_set, count)


class LibraryEvents:
    """Waits for events of the registered GPUs. If no GPU is registered, a wait lasts for its whole timeout."""

    def __init__(self, nvml: ModuleType, event_set: Any, registered_count: int) -> None:
        self._nvml = nvml
        self._chosen = event_set
        self._registered = registered_count

    def wait(self, timeout_ms: int) -> NvmlEvent | None:
        if not self._registered:
            time.sleep(timeout_ms / 1e3)
            return None
        try:
            data = _call(self._nvml, "nvmlEventSetWait_v2", self._chosen, timeout_ms)
            uuid = _text(_call(self._nvml, "nvmlDeviceGetUUID", data.device))
        except NvmlFailure as e:
            if e.code == Code.TIMEOUT:
                return None
            raise
        instance = None if data.gpuInstanceId == NO_INSTANCE else int(data.gpuInstanceId)
        return NvmlEvent(uuid=uuid, kind=int(data.eventType), value=int(data.eventData), gpu_instance=instance)

    def close(self) -> None:
        with contextlib.suppress(NvmlFailure):
            _call(self._nvml, "nvmlEventSetFree", self._chosen)


def _call(nvml: ModuleType, function: str, *arguments: Any) -> Any:
    """Calls a function of NVML's binding. Raises NvmlFailure for its errors."""
    try:
        return getattr(nvml, function)(*arguments)
    except nvml.NVMLError as e:
        raise NvmlFailure(int(e.value), function) from None
    except getattr(nvml, "NVMLLibraryMismatchError", nvml.NVMLError):  # newer bindings have it
        raise NvmlFailure(Code.FUNCTION_NOT_FOUND, function) from None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def plain(answer: Any) -> Any:
    """Converts an answer of the binding to a JSON value. Structures become objects without their pointers."""
    if answer is None or isinstance(answer, bool | int | float | str):
        return answer
    if isinstance(answer, bytes):
        return _text(answer)
    if isinstance(answer, ctypes.Structure):
        fields = ((name, getattr(answer, name)) for name, *_ in answer._fields_)
        return {name: plain(value) for name, value in fields if not isinstance(value, ctypes._Pointer)}
    if isinstance(answer, list | tuple | ctypes.Array):
        return [plain(item) for item in answer]
    return {name: plain(value) for name, value in vars(answer).items()}
