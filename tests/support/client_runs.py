"""Runs code in sessions by the client."""

from __future__ import annotations

from uuid import uuid4

from ai.backend.client.session import Session


def run_to_end(session: Session, name: str, code: str) -> str:
    """Runs code in a session as one cell, however long the replies take, and returns what it printed.

    Raises AssertionError with what it wrote to standard error.
    """
    run_id, printed, mode = uuid4().hex[:16], [], "query"
    while True:
        result = session.ComputeSession(name).execute(run_id=run_id, code=code, mode=mode)
        errors = [text for stream, text in result["console"] if stream == "stderr"]
        assert not errors, "".join(errors)
        printed += [text for stream, text in result["console"] if stream == "stdout"]
        if result["status"] == "finished":
            return "".join(printed)
        code, mode = "", "continue"
