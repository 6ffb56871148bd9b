"""Provides the standard input of a program: a pipe from the client, which is asked for a line when the program waits.

A program says nothing when it reads. Whether it waits is read from /proc: a thread of it is in a system call that
reads the empty pipe, or in one that waits for the pipe and for no socket.
"""

from __future__ import annotations

import fcntl
import os
import termios

from .framing import END_OF_INPUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, Iterator, List, Optional

    from .event_loop import Loop, Timer

_MIN_DELAY_S, _MAX_DELAY_S = 0.02, 0.25
_MAX_PROCESSES = 256
_MAX_WAITED_FDS = 1024
_CALLS_BY_MACHINE: Dict[str, Dict[int, str]] = {
    "x86_64": {
        0: "read", 19: "read", 7: "poll", 271: "poll", 23: "select", 270: "select", 232: "epoll", 281: "epoll",
        441: "epoll",
    },
    "aarch64": {63: "read", 65: "read", 73: "poll", 72: "select", 22: "epoll", 441: "epoll"},
}  # fmt: skip
"""The numbers of the system calls in which a thread waits for input."""


class ProgramInput:
    """Writes the client's input to the stdin of one program at a time, and detects when the program waits for input.

    Calls `on_wait` when the program waits for input that the client has not sent.
    """

    def __init__(self, loop: Loop, on_wait: Callable[[], None]) -> None:
        self._loop = loop
        self._on_wait = on_wait
        self._write_fd = -1
        self._unsent = bytearray()
        self._is_ending = False
        self._pid = 0
        self._delay_s = _MIN_DELAY_S
        self._timer: Optional[Timer] = None
        self.is_asked = False

    def open(self) -> int:
        """Returns a new descriptor for the program's stdin; the caller must close the descriptor.

        It is /dev/null if /proc does not show when a program waits.
        """
        self.close()
        if not _can_inspect():
            return os.open("/dev/null", os.O_RDONLY)
        read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._write_fd, False)
        return read_fd

    def follow(self, pid: int) -> None:
        """Begins to check repeatedly if the program `pid` waits for input.

        The program was started with the descriptor that `open` returned.
        """
        self._pid = pid
        if self._write_fd >= 0:
            self._check_later(_MIN_DELAY_S)

    def answer(self, text: str) -> None:
        """Writes a line to the program, or closes its input at END_OF_INPUT."""
        self.is_asked = False
        if text == END_OF_INPUT:
            self._is_ending = True
        else:
            self._unsent += text.encode("utf-8", "surrogateescape") + b"\n"
        self._flush(0)
        self._check_later(_MIN_DELAY_S)

    def close(self) -> None:
        """Closes the pipe. Bytes that were not written yet are dropped."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._write_fd >= 0:
            self._loop.unwatch(self._write_fd)
            os.close(self._write_fd)
        self._write_fd = -1
        self._unsent.clear()
        self._is_ending = self.is_asked = False

    def _flush(self, _events: int) -> None:
        while self._unsent:
            try:
                del self._unsent[: os.write(self._write_fd, self._unsent[:65_536])]
            except BlockingIOError:
                self._loop.watch(self._write_fd, 4, self._flush)  # POLLOUT
                return
            except OSError:
                self.close()  # the program has closed its input
                return
        if self._write_fd >= 0:
            self._loop.unwatch(self._write_fd)
        if self._is_ending:
            self.close()

    def _check_later(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._write_fd >= 0 and not self.is_asked:
            self._delay_s = delay_s
            self._timer = self._loop.call_later(delay_s, self._check)

    def _check(self) -> None:
        self._timer = None
        unread_bytes = bytearray(4)
        fcntl.ioctl(self._write_fd, termios.FIONREAD, unread_bytes, True)
        if not any(unread_bytes) and waits_for(self._pid, os.fstat(self._write_fd).st_ino):
            self.is_asked = True
            self._on_wait()
        else:
            self._check_later(min(self._delay_s * 1.5, _MAX_DELAY_S))


def _can_inspect() -> bool:
    return os.uname().machine in _CALLS_BY_MACHINE and os.path.exists("/proc/self/syscall")


def waits_for(pid: int, pipe_inode: int) -> bool:
    """Returns True if a thread of the process `pid` or of its descendants waits for data of the pipe."""
    call_by_number = _CALLS_BY_MACHINE[os.uname().machine]
    for folder in _task_folders(pid):
        try:
            with open(folder + "/syscall", "rb") as file:
                syscall_words = file.read(256).split()
            wait_call = call_by_number.get(int(syscall_words[0])) if len(syscall_words) > 2 else None
            if wait_call is not None and _reads_pipe(
                folder, wait_call, [int(argument_text, 16) for argument_text in syscall_words[1:4]], pipe_inode
            ):
                return True
        except (OSError, ValueError):
            continue  # it has ended, or belongs to somebody else
    return False


def _task_folders(pid: int) -> Iterator[str]:
    """Yields the folder in /proc of each thread of a process and of its descendants."""
    pending_pids = [str(pid)]
    for pending_pid in pending_pids:
        try:
            thread_ids = os.listdir(f"/proc/{pending_pid}/task")
        except OSError:
            continue
        for thread_id in thread_ids:
            folder = f"/proc/{pending_pid}/task/{thread_id}"
            yield folder
            try:
                with open(folder + "/children", encoding="ascii") as file:
                    pending_pids += file.read().split()[: max(0, _MAX_PROCESSES - len(pending_pids))]
            except OSError:
                continue


def _reads_pipe(folder: str, wait_call: str, call_arguments: List[int], pipe_inode: int) -> bool:
    fds = [call_arguments[0]] if wait_call == "read" else _waited_fds(folder, wait_call, call_arguments)
    pipe_link = f"pipe:[{pipe_inode}]"
    link_targets = [_link_target(f"{folder}/fd/{fd}") for fd in fds]
    return pipe_link in link_targets and not any(name.startswith("socket:") for name in link_targets)


def _link_target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _waited_fds(folder: str, wait_call: str, call_arguments: List[int]) -> List[int]:
    """Returns the descriptors that a thread waits for in poll, select or epoll_wait."""
    if wait_call == "epoll":
        with open(f"{folder}/fdinfo/{call_arguments[0]}", encoding="ascii") as file:
            return [int(line.split()[1]) for line in file if line.startswith("tfd:")]
    address, entry_count = call_arguments[:2] if wait_call == "poll" else (call_arguments[1], call_arguments[0])
    if not address or entry_count > _MAX_WAITED_FDS:
        return []
    with open(f"{folder}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        if wait_call == "poll":
            entry_bytes = memory.read(8 * entry_count)
            return [
                int.from_bytes(entry_bytes[entry_offset : entry_offset + 4], "little", signed=True)
                for entry_offset in range(0, len(entry_bytes), 8)
            ]
        fd_bits = int.from_bytes(memory.read((entry_count + 7) // 8), "little")
    return [fd for fd in range(entry_count) if fd_bits >> fd & 1]
