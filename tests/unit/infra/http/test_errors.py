from __future__ import annotations

import msgspec

from ai.backend.common import errors
from ai.backend.common.errors import CreationDeferred, InternalError, InvalidInput, SessionNotFound
from ai.backend.infra.http.errors import MethodNotAllowed, problem, problem_classes, problem_response, status_of


def test_only_internal_errors_have_the_status_of_a_fault_of_ours() -> None:
    classes = problem_classes()
    assert {cls.__name__ for cls, status in classes.items() if status == 500} == {"BackendError", "InternalError"}
    assert len(classes) > 60


def test_a_class_without_a_line_of_its_own_has_the_status_of_its_nearest_ancestor() -> None:
    assert (status_of(errors.InvalidQuantity), status_of(errors.RegistryRefused)) == (400, 502)
    assert (status_of(errors.ServerFrozen), status_of(errors.DeadlineExceeded)) == (503, 504)


def test_an_error_of_a_daemon_takes_the_status_of_its_nearest_ancestor() -> None:
    class NoSuchThing(SessionNotFound, code="no-such-thing"): ...

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
    for value in ("unknown field", float("nan"), float("inf"), None):
        assert "Retry-After" not in problem_response(InvalidInput(data={"retry_after": value})).headers
    denied = problem_response(MethodNotAllowed(data={"allowed": ["GET", "POST"]}))
    assert (denied.status, denied.headers["Allow"]) == (405, "GET, POST")
    refused = problem_response(errors.AuthenticationFailed())
    assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, "BackendAI")
    assert isinstance(refused.body, bytes)
    assert msgspec.json.decode(refused.body)["type"].endswith("/auth-failed")
