from __future__ import annotations

import msgspec
import pytest

from ai.backend.common import errors
from ai.backend.common.errors import BackendError, CreationDeferred, InternalError, InvalidInput, SessionNotFound
from ai.backend.infra.http.errors import STATUS_OF, MethodNotAllowed, problem, problem_response, status_of


def _classes() -> list[type[BackendError]]:
    return [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, BackendError)]


@pytest.mark.parametrize("cls", _classes(), ids=lambda c: c.__name__)
def test_every_error_class_has_its_own_line_in_the_table(cls: type[BackendError]) -> None:
    assert cls in STATUS_OF


def test_an_error_of_a_daemon_takes_the_status_of_its_nearest_ancestor() -> None:
    class NoSuchThing(SessionNotFound):
        code = "no-such-thing"

    assert status_of(NoSuchThing()) == 404


def test_a_problem_has_what_the_published_client_prints() -> None:
    told = problem(InvalidInput("cpu: negative", data={"cpu": "negative"}), request_id="r1")
    assert told["type"] == "https://api.backend.ai/probs/invalid-api-params"
    assert told["title"]
    assert told["msg"] == told["detail"] == "cpu: negative"
    assert told["data"] == {"cpu": "negative"}
    assert (told["status"], told["request_id"]) == (400, "r1")


def test_a_fault_of_ours_shows_nothing_of_its_message() -> None:
    told = problem(InternalError("password is hunter2", data={"secret": "hunter2"}))
    assert "hunter2" not in str(told)


def test_headers_that_statuses_need() -> None:
    deferred = problem_response(CreationDeferred(retry_after=2.4))
    assert (deferred.status, deferred.headers["Retry-After"]) == (503, "2")
    denied = problem_response(MethodNotAllowed(data={"allowed": ["GET", "POST"]}))
    assert (denied.status, denied.headers["Allow"]) == (405, "GET, POST")
    refused = problem_response(errors.AuthenticationFailed())
    assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, "BackendAI")
    assert isinstance(refused.body, bytes)
    assert msgspec.json.decode(refused.body)["type"].endswith("/auth-failed")
