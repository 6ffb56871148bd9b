"""Forwards completion requests to the idle interpreter, and interrupts a completion that takes too long."""

from __future__ import annotations

from .light import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional

    from .event_loop import Loop, Timer
    from .framing import Outbox
    from .interpreters import Interpreter

_ANSWER_TIMEOUT_S = 2.0


class CompletionRequests:
    """Holds the completion requests that wait for the interpreter's answers, in their order."""

    def __init__(
        self, loop: Loop, interpreter: Optional[Interpreter], is_busy: Callable[[], bool], outbox: Outbox
    ) -> None:
        self._loop = loop
        self._interpreter = interpreter
        self._is_busy = is_busy
        self._outbox = outbox
        self._waiting: List[int] = []
        self._timer: Optional[Timer] = None

    def complete(self, message: Dict[str, Any]) -> None:
        options = message.get("options") or {}
        line, column = options.get("line"), options.get("col")
        text_before_cursor = str(message.get("code") or "")
        if isinstance(line, str) and isinstance(column, int) and column >= 0:
            text_before_cursor = line[:column]
        interpreter = self._interpreter
        # An interpreter that is busy with a run answers nobody else; no completion is better than a late one.
        is_idle = interpreter is not None and interpreter.is_ready and not self._is_busy()
        if interpreter is None or not is_idle or not interpreter.complete(text_before_cursor[-4096:]):
            self._outbox.reply(message, {"matches": []})
            return
        self._waiting.append(message["req"])
        if self._timer is None:
            self._timer = self._loop.call_later(_ANSWER_TIMEOUT_S, self._interrupt_completion)

    def _interrupt_completion(self) -> None:
        # A `__dir__` of the user that does not return.
        self._timer = None
        if self._waiting and self._interpreter is not None:
            self._interpreter.signal(signal.SIGINT)
            self._timer = self._loop.call_later(_ANSWER_TIMEOUT_S, self._interrupt_completion)

    def completed(self, encoded_matches: List[bytes]) -> None:
        """Sends the interpreter's matches as the answer to the oldest waiting request.

        The matches are empty after the interpreter's death.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            matches = [encoded_match.decode("utf-8", "replace") for encoded_match in encoded_matches]
            self._outbox.reply({"req": self._waiting.pop(0)}, {"matches": matches})
        if self._waiting:
            self._timer = self._loop.call_later(_ANSWER_TIMEOUT_S, self._interrupt_completion)
