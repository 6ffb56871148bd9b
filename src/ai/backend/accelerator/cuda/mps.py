"""Runs CUDA's Multi-Process Service (MPS), one control daemon for each GPU that is held in shares (decision 0502).

Each has a folder with its sockets, its log, its shared memory and the list of its
holders. It lives on when the plugin's host or the agent ends, as sessions do; who comes next finds it by its sockets.

Source: NVIDIA's documentation of the Multi-Process Service (control commands, environment variables, limits).
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ai.backend.plugin.accelerator import CreationDeferred
from ai.backend.plugin.programs import OUTLIVES_VARIABLE

log = logging.getLogger(__name__)
PROGRAM = "nvidia-cuda-mps-control"
_PIPE_VARIABLE, _LOG_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
_ANSWER_S = 10.0
_START_S = 10.0
_QUIT_TIMEOUT_S = 5
_OWN_MEMORY = 'mount --bind "$0" /dev/shm && exec "$@"'
"""The command that starts a daemon in a mount namespace, in which ``/dev/shm`` is the folder that its clients see
there.
"""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the limits of one holder on one GPU: bytes of device memory, and percent of the GPU's threads."""

    memory_bytes: int
    percent: int


class MpsFolders(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the paths of two folders that a client of MPS sees: one with the daemon's sockets, one as ``/dev/shm``."""

    pipe: str
    shared_memory: str


class MpsFailure(Exception):
    """Raised when a control program did not do what it was asked; the text says why."""


class MpsTimeout(MpsFailure):
    """Raised when a control daemon runs but does not answer in time."""


class MpsDaemons:
    """Starts, limits and ends the daemons of one node. Every call blocks, and may be repeated.

    Args:
        folder: of all daemons; on a disk of this machine. Only the agent's user may write it.
        program: the path of ``nvidia-cuda-mps-control``.
        shared_memory_bytes: the size of the shared memory of each daemon with all its clients.
        isolates: whether a daemon gets a shared memory of its own, which takes root; without it that is the host's.
    """

    def __init__(self, folder: Path, program: str, *, shared_memory_bytes: int, isolates: bool | None = None) -> None:
        self._folder = folder
        self._program = program
        self._shared_memory_bytes = shared_memory_bytes
        self.isolates = os.geteuid() == 0 if isolates is None else isolates

    def hold(self, uuid: str, holder: str, share: Share) -> MpsFolders:
        """Adds a holder, or changes its share, and starts the GPU's daemon if it does not answer.

        The limits of the daemon become those of the largest share: a client lowers them for itself, and cannot raise
        them. Raises CreationDeferred with the last line of the daemon's log.
        """
        with self._locked(uuid) as gpu_folder:
            holders = {**_read_holders(gpu_folder), holder: share}
            try:
                if not self._answers(gpu_folder):
                    self._start(gpu_folder, uuid)
                self._limit(gpu_folder, holders.values())
            except (MpsFailure, OSError, subprocess.SubprocessError) as e:
                raise CreationDeferred(f"MPS of {uuid} does not work: {e}", retry_after=5.0) from None
            _write_holders(gpu_folder, holders)
            return MpsFolders(pipe=str(gpu_folder / "pipe"), shared_memory=str(gpu_folder / "shm"))

    def release(self, uuid: str, holder: str) -> None:
        """Removes a holder from a GPU, and ends the GPU's daemon if no holder is left. Raises MpsFailure if it does not
        end.
        """
        if not (self._folder / uuid).is_dir():
            return
        with self._locked(uuid) as gpu_folder:
            holders = _read_holders(gpu_folder)
            holders.pop(holder, None)
            _write_holders(gpu_folder, holders)
            if holders:
                if self._answers(gpu_folder):
                    self._limit(gpu_folder, holders.values())
                return
            if self._answers(gpu_folder):
                self._command(gpu_folder, f"quit -t {_QUIT_TIMEOUT_S}", timeout_s=_QUIT_TIMEOUT_S + _ANSWER_S)
                if self._answers(gpu_folder):
                    raise MpsFailure(f"MPS of {uuid} does not end")
            self._remove(gpu_folder)

    def holders(self, uuid: str) -> Mapping[str, Share]:
        """Returns the shares of the holders of a GPU."""
        return _read_holders(self._folder / uuid)

    def _start(self, gpu_folder: Path, uuid: str) -> None:
        shutil.rmtree(gpu_folder / "pipe", ignore_errors=True)  # sockets of one that died
        for folder_name in ("pipe", "log", "shm"):
            (gpu_folder / folder_name).mkdir(exist_ok=True)
        (gpu_folder / "pipe").chmod(0o755)
        command = [self._program, "-d"]
        if self.isolates:
            self._mount_shared_memory(gpu_folder / "shm")
            namespace_command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _OWN_MEMORY]
            command = [*namespace_command, str(gpu_folder / "shm"), *command]
        environment = {**self._environment(gpu_folder), "CUDA_VISIBLE_DEVICES": uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        environment[OUTLIVES_VARIABLE] = "1"
        # A session of its own: when the plugin's host dies, what is left in the host's session is killed.
        with (gpu_folder / "log" / "start.log").open("ab") as output:
            completed = subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=_START_S,
                check=False,
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_S
        while completed.returncode == 0 and time.monotonic() < deadline:
            if self._answers(gpu_folder):
                log.info("MPS of %s was started", uuid)
                return
            time.sleep(0.05)
        raise MpsFailure(_last_line(gpu_folder) or f"{self._program} ended with {completed.returncode}")

    def _mount_shared_memory(self, folder: Path) -> None:
        if os.path.ismount(folder):  # of a daemon that died
            return
        options = f"nosuid,nodev,noexec,mode=1777,size={self._shared_memory_bytes}"
        command = ["mount", "-t", "tmpfs", "-o", options, "backendai-mps", str(folder)]
        completed = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=False)
        if completed.returncode != 0:
            raise MpsFailure(f"no shared memory for it: {completed.stderr.strip()[:200]}")

    def _remove(self, gpu_folder: Path) -> None:
        shared_memory = gpu_folder / "shm"
        if os.path.ismount(shared_memory):
            subprocess.run(
                ["umount", "--lazy", str(shared_memory)], capture_output=True, timeout=_ANSWER_S, check=False
            )
        for name in ("pipe", "shm"):
            shutil.rmtree(gpu_folder / name, ignore_errors=True)

    def _limit(self, gpu_folder: Path, shares: Collection[Share]) -> None:
        """Sets the limits of memory and threads to those of the largest share, also for servers that start later."""
        memory_mib = max(share.memory_bytes for share in shares) >> 20
        percent = max(share.percent for share in shares)
        self._command(gpu_folder, f"set_default_device_pinned_mem_limit 0 {memory_mib}M")
        self._command(gpu_folder, f"set_default_active_thread_percentage {percent}")
        for server in self._command(gpu_folder, "get_server_list").split():
            if server.isdigit():
                self._command(gpu_folder, f"set_device_pinned_mem_limit {server} 0 {memory_mib}M")
                self._command(gpu_folder, f"set_active_thread_percentage {server} {percent}")

    def _answers(self, gpu_folder: Path) -> bool:
        """Returns True if the control daemon in this folder answers.

        Raises MpsTimeout for one that is slow: it may have clients, and is not replaced.
        """
        if not (gpu_folder / "pipe" / "control").exists():
            return False
        try:
            self._command(gpu_folder, "get_server_list")
        except MpsTimeout:
            raise
        except (MpsFailure, OSError):
            return False
        return True

    def _command(self, gpu_folder: Path, command: str, *, timeout_s: float = _ANSWER_S) -> str:
        try:
            completed = subprocess.run(
                [self._program],
                input=command + "\n",
                env=self._environment(gpu_folder),
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise MpsTimeout(f"{command}: no answer within {timeout_s:g} s") from None
        if completed.returncode != 0:
            raise MpsFailure(f"{command}: {(completed.stderr or completed.stdout).strip()[:200]}")
        return completed.stdout

    def _environment(self, gpu_folder: Path) -> dict[str, str]:
        inherited_variables = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        return {**inherited_variables, _PIPE_VARIABLE: str(gpu_folder / "pipe"), _LOG_VARIABLE: str(gpu_folder / "log")}

    @contextmanager
    def _locked(self, uuid: str) -> Iterator[Path]:
        """Yields the folder of a GPU, and locks the folder against other processes until the context ends.

        Two agents may overlap at a restart.
        """
        gpu_folder = self._folder / uuid
        gpu_folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        with (gpu_folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield gpu_folder


def _read_holders(gpu_folder: Path) -> dict[str, Share]:
    try:
        stored_shares = json.loads((gpu_folder / "holders.json").read_text(encoding="utf-8"))
        return {
            holder: Share(memory_bytes=int(memory), percent=int(percent))
            for holder, (memory, percent) in stored_shares.items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _write_holders(gpu_folder: Path, holders: Mapping[str, Share]) -> None:
    stored_shares = {holder: [share.memory_bytes, share.percent] for holder, share in holders.items()}
    unfinished = gpu_folder / "holders.json.new"
    unfinished.write_text(json.dumps(stored_shares), encoding="utf-8")
    unfinished.rename(gpu_folder / "holders.json")


def _last_line(gpu_folder: Path) -> str:
    for name in ("control.log", "start.log"):
        try:
            lines = (gpu_folder / "log" / name).read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            continue
        if last_line := next((line.strip() for line in reversed(lines) if line.strip()), ""):
            return last_line[:300]
    return ""
