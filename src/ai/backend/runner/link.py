"""Connects the Python interpreter with its supervisor by pipes."""

from __future__ import annotations

import _thread
import builtins
import os

from . import streams
from .framing import END_OF_INPUT, BrokenFrame, pack, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Callable, List, Optional, Tuple

__builtins__ = dict(vars(builtins))  # type: ignore[assignment]  # a module or its dict, both are allowed


class Link:
    """Sends and receives frames over the pipes to the supervisor; an interrupt waits until a frame is complete."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.read_fd, self.write_fd = read_fd, write_fd
        self.lock = _thread.allocate_lock()
        self.is_open = True
        self.is_running = False
        self._uninterrupted_depth = 0
        self._has_pending_interrupt = False
        self._in = bytearray()
        self._frames: List[Tuple[bytes, List[bytes]]] = []
        self._question_count = 0

    def on_interrupt(self, _signal_number: int, _frame: Optional[FrameType]) -> None:
        """Handles SIGINT: raises KeyboardInterrupt in the user's code, never within a frame."""
        if self._uninterrupted_depth:
            self._has_pending_interrupt = True
        elif self.is_running:
            raise KeyboardInterrupt

    def call_uninterrupted(self, action: Callable[[], None]) -> None:
        """Calls `action`, and delays an interrupt that arrives during the call until `action` has returned.

        The interrupt is then raised if code runs.
        """
        self._uninterrupted_depth += 1
        try:
            action()
        finally:
            self._end_uninterrupted()

    def _end_uninterrupted(self) -> None:
        self._uninterrupted_depth -= 1
        if not self._uninterrupted_depth and self._has_pending_interrupt:
            self._has_pending_interrupt = False
            if self.is_running:
                raise KeyboardInterrupt

    def send(self, kind: bytes, *fields: bytes) -> None:
        """Sends a frame after all output in the pipes was read; does nothing in a fork of the user's code."""
        if not self.is_open:
            return
        streams.wait_drained(1)
        streams.wait_drained(2)
        frame = pack(kind, fields)
        self._uninterrupted_depth += 1
        try:
            with self.lock, memoryview(frame) as frame_view:
                sent_bytes = 0
                while sent_bytes < len(frame):
                    sent_bytes += os.write(self.write_fd, frame_view[sent_bytes:])
        except OSError:
            os._exit(70)  # the user closed the pipe or the supervisor is gone: there is nothing to come back to
        finally:
            self._end_uninterrupted()

    def receive(self) -> Tuple[bytes, List[bytes]]:
        """Returns the next frame of the supervisor. An interrupt can end the wait."""
        while not self._frames:
            import select

            poller = select.poll()
            poller.register(self.read_fd, select.POLLIN)
            poller.poll()
            self._uninterrupted_depth += 1
            try:
                received_bytes = os.read(self.read_fd, 262_144)
                if not received_bytes:
                    os._exit(0)
                self._in += received_bytes
                self._frames.extend(unpack(self._in))
            except (OSError, BrokenFrame):
                os._exit(70)
            finally:
                self._end_uninterrupted()
        return self._frames.pop(0)

    def ask(self, is_password: bool) -> str:
        """Requests a line of input from the client, waits for the answer, and returns the line.

        Raises EOFError at the end of the client's input, and in a process that the user's code forked.
        """
        if not self.is_open:
            raise EOFError("no input in a forked process")
        self._question_count += 1
        question_number = b"%d" % self._question_count
        for stream in streams.current_outputs():
            streams.flush_quietly(stream)
        self.send(b"I", question_number, b"1" if is_password else b"0")
        while True:
            kind, fields = self.receive()
            if kind == b"I" and fields[0] == question_number:
                if fields[1] == END_OF_INPUT.encode():
                    raise EOFError("the client's input has ended")
                return fields[1].decode("utf-8", "replace")

    def close_in_fork(self) -> None:
        """Closes the pipes in a forked child, so that the supervisor notices the death of the parent."""
        self.is_open = False
        for fd in (self.read_fd, self.write_fd):
            try:
                os.close(fd)
            except OSError:
                continue
