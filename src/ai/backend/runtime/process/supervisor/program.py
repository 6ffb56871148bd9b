"""Answers the agent's messages for a workload whose first process is the session's program, without a runner.

See decision 0265.
"""

from __future__ import annotations

from ai.backend.node.relay.framing import decode, pack

TYPE_CHECKING = False  # no typing here: memory
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PROGRAM_WORD = "program"
_RUNNER_WORD_LINE = b"runner\n"


class ProgramRun:
    """Handles the agent's messages about the run of a session's program that was started without a runner.

    Has a runner started before the first message that needs one.

    Args:
        send_message: sends a message to the agent as the runner would.
        interrupt: sends SIGINT to the workload's processes.
        cancel: ends the workload, with a reason.
    """

    def __init__(
        self,
        send_message: Callable[[dict[str, Any]], None],
        interrupt: Callable[[], None],
        cancel: Callable[[str], None],
    ) -> None:
        self._send_message = send_message
        self._interrupt = interrupt
        self._cancel = cancel
        self._run_id = ""
        self._has_runner = False
        self.cancel_reason = ""

    @property
    def has_started(self) -> bool:
        """True once the program of a batch session has been started directly, without a runner.

        The run then ends with that program.
        """
        return bool(self._run_id)

    def bytes_for(self, kind: str, body: bytes) -> bytes:
        """Returns the bytes to write to the workload's first process for a message of the agent.

        Returns no bytes if the message is handled here.
        """
        if kind == "ping":
            reply = {"t": "reply", "req": decode(body).get("req"), "ok": True, "data": {"busy": self.has_started}}
            self._send_message(reply)
            return b""
        if not self._run_id and not self._has_runner and kind == "run":
            self._run_id = str(decode(body)["id"])
            self._send_message({"t": "started", "id": self._run_id})
            return f"{PROGRAM_WORD}\n".encode()
        if self._run_id and kind in ("run", "cancel", "interrupt"):
            message = decode(body)
            if kind == "interrupt":
                self._interrupt()
                return b""
            if message.get("id") == self._run_id:
                if kind == "cancel":
                    self.cancel_reason = str(message.get("reason") or "cancelled")
                    self._cancel(self.cancel_reason)
                return b""
        if self._has_runner:
            return pack(body)
        self._has_runner = True
        return _RUNNER_WORD_LINE + pack(body)
