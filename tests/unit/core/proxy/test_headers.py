from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai.backend.core.proxy.headers import (
    HOP_BY_HOP,
    OURS,
    BadRequest,
    Header,
    check_request,
    forwarded_fields,
    request_fields,
    response_fields,
)

HOST = (b"host", b"app.example")


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (b"/", 200),
        (b"/a%2Fb/../c?x=//y&z=%20", 200),
        (b"/%7Bx%7D?q={a|b}^", 200),
        (b"http://other/x", 400),
        (b"other:80", 400),
        (b"/x#y", 400),
        (b"/x%00", 400),
        (b"/x%", 400),
        (b"/x%2", 400),
        (b"/x%zz", 400),
        (b"/x\\y", 400),
        (b"/x y", 400),
        (b"/x\x7f", 400),
        (b"/x\xc3\xa9", 400),
        (b"", 400),
    ],
)
def test_targets_are_paths_that_everybody_reads_alike(target: bytes, status: int) -> None:
    if status == 200:
        assert check_request(b"GET", target, "1.1", [HOST]) == b"app.example"
    else:
        with pytest.raises(BadRequest) as failure:
            check_request(b"GET", target, "1.1", [HOST])
        assert failure.value.status == status


@pytest.mark.parametrize(
    ("method", "version", "headers", "status"),
    [
        (b"CONNECT", "1.1", [HOST], 405),
        (b"TRACE", "1.1", [HOST], 405),
        (b"GET", "1.1", [], 400),
        (b"GET", "1.1", [HOST, HOST], 400),
        (b"GET", "1.1", [(b"host", b"")], 400),
        (b"POST", "1.1", [HOST, (b"transfer-encoding", b"gzip, chunked")], 501),
        (b"POST", "1.1", [HOST, (b"transfer-encoding", b"chunked"), (b"transfer-encoding", b"chunked")], 501),
        (b"POST", "1.1", [HOST, (b"transfer-encoding", b"chunked"), (b"content-length", b"4")], 400),
        (b"POST", "1.0", [HOST, (b"transfer-encoding", b"chunked")], 400),
    ],
)
def test_ambiguous_requests_are_refused(method: bytes, version: str, headers: list[Header], status: int) -> None:
    with pytest.raises(BadRequest) as failure:
        check_request(method, b"/", version, headers)
    assert failure.value.status == status


names = st.sampled_from([*sorted(HOP_BY_HOP | OURS), b"accept", b"x_forwarded_for", b"x-app", b"host", b"cookie"])
headers = st.lists(st.tuples(names, st.sampled_from([b"1", b"x-app, close", b"x-forwarded-for"])), max_size=12)


@given(headers)
def test_fields_of_the_proxy_come_from_the_proxy_alone(headers: list[Header]) -> None:
    lines = request_fields(headers)
    assert {line.partition(b":")[0] for line in lines} <= {b"accept", b"x-app"}
    listed = any(name == b"connection" and b"x-app" in value for name, value in headers)
    assert not (listed and any(line.startswith(b"x-app") for line in lines))


def test_the_client_cannot_remove_what_the_proxy_says() -> None:
    lines = request_fields([HOST, (b"connection", b"x-forwarded-for, x-forwarded-proto")])
    assert lines == []
    assert forwarded_fields("192.0.2.1", "https", b"app.example").startswith(b"X-Forwarded-For: 192.0.2.1\r\n")


def test_cors_of_the_app_is_left_alone() -> None:
    headers = [(b"access-control-allow-origin", b"https://a"), (b"connection", b"close"), (b"set-cookie", b"a=1")]
    assert response_fields(headers, b"app.example") == [
        b"access-control-allow-origin: https://a\r\n",
        b"set-cookie: a=1\r\n",
    ]
