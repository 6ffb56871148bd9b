"""Requests of a user that go on while a test replaces or ends daemons."""

from __future__ import annotations

import threading
import time
from typing import Self

from ai.backend.client.config import APIConfig
from ai.backend.client.exceptions import BackendError
from ai.backend.client.session import Session
from tests.support.client_runs import run_to_end
from tests.support.cluster import wait_until


def session_of(user: dict[str, str]) -> Session:
    """Returns the client of a user, who is named as `Deployment.set_up` names users."""
    endpoint, access_key, secret_key = (user[f"BACKEND_{name}"] for name in ("ENDPOINT", "ACCESS_KEY", "SECRET_KEY"))
    return Session(config=APIConfig(endpoint=endpoint, access_key=access_key, secret_key=secret_key))


class Load:
    """Reads and changes the session all the time; keeps the longest interruption and what failed for good."""

    def __init__(self, user: dict[str, str]) -> None:
        self._user = user
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.answers, self.longest_s = 0, 0.0
        self.refusals: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        failing_since: float | None = None
        with session_of(self._user) as session:
            while not self._stop.is_set():
                try:
                    assert session.ComputeSession("stays").get_info()["status"].startswith("RUNNING")
                    assert run_to_end(session, "stays", "count += 1; print(kept)") == "42\n"
                except (BackendError, OSError) as error:
                    status = getattr(error, "status", 503)
                    if status < 500 and status != 429:
                        self.refusals.append(str(error))
                    failing_since = failing_since or time.monotonic()
                    time.sleep(0.1)
                    continue
                if failing_since is not None:
                    self.longest_s = max(self.longest_s, time.monotonic() - failing_since)
                    failing_since = None
                self.answers += 1

    def go_on(self) -> None:
        """Waits until requests succeed again."""
        before = self.answers
        wait_until(lambda: self.answers >= before + 3, timeout_s=90, what="requests that succeed")
