"""Names of units, and what the services of a cloud say of their faults."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from ai.backend.common.errors import BackendError, Conflict, InvalidInput, NotFound, StorageFull
from ai.backend.kubeacc.drivers.cyborg.connection import Cloud, CloudRefused, CloudUnavailable, fault_text, refusal_of
from ai.backend.kubeacc.drivers.cyborg.model import Deployables, Unit
from ai.backend.kubeacc.drivers.cyborg.settings import CyborgSettings

UUID = "96f81097-1588-4042-aa69-f643ce0c13e7"


def test_all_that_a_unit_has_is_named_after_it() -> None:
    units = [Unit.parse(f"{UUID}.{number}", cluster) for number in (0, 1) for cluster in ("", "lab")]
    names = [
        name for unit in units for name in (unit.profile, unit.consumer, unit.programming_consumer, unit.host_instance)
    ]
    assert len(set(names)) == 16
    assert units[0].profile == f"kube-acc-{UUID}-0"
    assert Unit.parse(units[0].device_id) == units[0]


@pytest.mark.parametrize("device_id", ["", "x.0", UUID, f"{UUID}.", f"{UUID}.-1", f"{UUID}.\u0661", f"{UUID}.1234567"])
def test_what_names_no_unit_is_not_there(device_id: str) -> None:
    with pytest.raises(NotFound):
        Unit.parse(device_id)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"error_message": json.dumps({"faultstring": "no\nhandle"})}, "no handle"),
        ({"errors": [{"status": 409, "detail": "no room"}]}, "no room"),
        ({"error": {"message": "who", "code": 401}}, "who"),
        ({"other": 1}, '{"other": 1}'),
        (b"<html>\x1b[31m red", "<html> [31m red"),
        (b"\xff" * 9000, "\ufffd" * 300),
        (b"[" * 5000, "[" * 300),
    ],
)
def test_faults_are_one_line(body: object, text: str) -> None:
    assert fault_text(body if isinstance(body, bytes) else json.dumps(body).encode()) == text


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (302, CloudRefused),
        (400, InvalidInput),
        (401, CloudRefused),
        (403, CloudRefused),
        (404, NotFound),
        (409, Conflict),
        (413, StorageFull),
        (429, CloudUnavailable),
        (502, CloudUnavailable),
    ],
)
def test_each_status_is_an_error_of_ours(status: int, error: type[BackendError]) -> None:
    assert type(refusal_of("Cyborg", status, "why")) is error


@contextmanager
def answering(body: bytes, *, times: int = 1) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def __getattr__(self, name: str) -> object:
            if name != "do_GET":
                raise AttributeError(name)
            return self.answer

        def answer(self) -> None:
            self.send_response(200)
            self.end_headers()
            try:
                for _ in range(times):
                    self.wfile.write(body)
            except OSError:
                return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def test_a_password_does_not_follow_a_redirect() -> None:
    received: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_POST(self) -> None:  # the name that http.server calls
            received.append(self.path)
            self.send_response(307)
            self.send_header("Location", f"http://{self.headers['Host']}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    auth = {"auth_url": f"http://127.0.0.1:{server.server_address[1]}/v3", "username": "u", "password": "p"}
    cloud = Cloud(CyborgSettings(auth_type="v3password", auth=auth | {"user_domain_id": "default"}))
    try:
        with pytest.raises(BackendError):
            await cloud.project_and_user()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert set(received) == {"/v3/auth/tokens"}


def cloud_at(url: str) -> Cloud:
    """A cloud with a fixed token, which asks no Keystone."""
    return Cloud(CyborgSettings(auth_type="admin_token", auth={"endpoint": url, "token": "t"}, request_timeout=5))


@pytest.mark.parametrize(
    ("body", "times", "message"),
    [
        (b"x" * (1 << 20), 40, "answers more than"),
        (b'{"deployables": 5}', 1, "answers what it should not"),
        (b"[" * 100_000, 1, "answers what it should not"),
        (b"\xff", 1, "answers what it should not"),
    ],
)
async def test_answers_that_make_no_sense_are_bounded(body: bytes, times: int, message: str) -> None:
    with answering(body, times=times) as url, pytest.raises(CloudUnavailable, match=message):
        await cloud_at(url).request("accelerator", "GET", "/deployables", Deployables)
