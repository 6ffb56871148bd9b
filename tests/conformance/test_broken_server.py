"""The checks can fail: each fault that breaks the published client is noticed by the check of the command it breaks."""

from pathlib import Path
from typing import Any

import pytest

from ai.backend.client.session import Session
from tests.conformance.broken import Answer, Breakage, broken_server
from tests.conformance.checks import Scene, run_check
from tests.conformance.published import Published

pytestmark = pytest.mark.timeout(180)
_HANG_S = 15.0


def _rename(old: str, new: str) -> Any:
    def spoil(answer: Answer) -> None:
        value = answer.json()
        value[new] = value.pop(old)
        answer.set_json(value)

    return spoil


def _as_text(answer: Answer) -> None:
    answer.content_type = "text/plain"


def _reverse_items(answer: Answer) -> None:
    value = answer.json()
    for root in value["data"].values():
        if isinstance(root, dict) and "items" in root:
            root["items"] = [dict(reversed(item.items())) for item in root["items"]]
    answer.set_json(value)


def _refuse_graphql(answer: Answer) -> None:
    answer.status = 400
    answer.set_json({"errors": [{"message": "no"}]})


def _unwrap_files(answer: Answer) -> None:
    value = answer.json()
    value["files"] = [{"name": "one.txt"}]
    answer.set_json(value)


def _spoil_archive(answer: Answer) -> None:
    answer.body = answer.body.replace(b"ustar", b"USTAR").replace(b"down.bin", b"down.bad")


def _without(key: str) -> Any:
    def message(told: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in told.items() if name != key}

    return message


def _twice(told: dict[str, Any]) -> dict[str, Any]:
    return {**told, "console": [item for item in told.get("console") or [] for _ in range(2)]}


def _unparsable_data(line: bytes) -> bytes:
    return b"data: not json\n" if line.startswith(b"data:") else line


def _no_closing(line: bytes) -> bytes:
    return line.replace(b"server_close", b"server_pause")


def _wrong_reason(line: bytes) -> bytes:
    return line.replace(b"user-requested", b"")


def _no_message(_told: dict[str, Any]) -> None:
    return None


_STREAM = "/stream/session/.*"
BREAKAGES = [
    Breakage("version is malformed", "config", "/", spoil=lambda answer: answer.set_json({"version": "7"})),
    Breakage("another version", "config", "/", spoil=lambda a: a.set_json({"version": "v9.20990101", "manager": "x"})),
    Breakage("no session id", "start", "/session", "POST", spoil=_rename("sessionId", "sessId")),
    Breakage("a reply without a media type of JSON", "start", "/session", "POST", spoil=_as_text),
    Breakage("a creation that never happens", "start", "/session", "POST", swallow=(201, '{"sessionId": "x"}')),
    Breakage("keys in another order", "ps", "/admin/gql", spoil=_reverse_items),
    Breakage("GraphQL errors with status 400", "ps", "/admin/gql", spoil=_refuse_graphql),
    Breakage("GraphQL errors with status 400", "info", "/admin/gql", spoil=_refuse_graphql),
    Breakage("a result without status", "run_code", _STREAM, message=_without("status")),
    Breakage("a result without console", "run_code", _STREAM, message=_without("console")),
    Breakage("a stream that says nothing", "run_file", _STREAM, message=_no_message),
    Breakage("output that comes twice", "run_long", _STREAM, message=_twice),
    Breakage("an upload that is thrown away", "upload", "/session/.*/upload", swallow=(204, "")),
    Breakage("an archive that is none", "download", "/session/.*/download", spoil=_spoil_archive),
    Breakage("a list of files that is no text", "ls", "/session/.*/files", spoil=_unwrap_files),
    Breakage("logs under another name", "logs", "/session/.*/logs", spoil=_rename("result", "logs")),
    Breakage("events that are not JSON", "events", "/events/session", line=_unparsable_data),
    Breakage("a stream of events without an end", "events", "/events/session", line=_no_closing),
    Breakage("events without their reason", "events", "/events/session", line=_wrong_reason),
    Breakage("a restart that never happens", "restart", "/session/[^/]*", "PATCH", swallow=(204, "")),
    Breakage("a rename that never happens", "rename", "/session/.*/rename", swallow=(204, "")),
    Breakage("a removal that never happens", "rm", "/session/[^/]*", "DELETE", swallow=(200, '{"stats": {}}')),
]


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda one: f"{one.check}: {one.name}")
def test_a_broken_server_fails_its_check(
    breakage: Breakage, published_python: Path, keys: dict[str, str], server: Session, tmp_path: Path
) -> None:
    with broken_server(keys["BACKEND_ENDPOINT"], breakage) as endpoint:
        scene = Scene(Published(published_python, endpoint, keys, tmp_path, timeout_s=_HANG_S), server)
        with pytest.raises(AssertionError):
            run_check(breakage.check, scene)


@pytest.mark.parametrize("name", ["ps", "run_code", "upload", "download", "events"])
def test_the_proxy_itself_breaks_nothing(
    name: str, published_python: Path, keys: dict[str, str], server: Session, tmp_path: Path
) -> None:
    with broken_server(keys["BACKEND_ENDPOINT"], None) as endpoint:
        run_check(name, Scene(Published(published_python, endpoint, keys, tmp_path), server))
