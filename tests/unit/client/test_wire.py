from functools import partial

import pytest

from ai.backend.client.config import APIConfig
from ai.backend.client.exceptions import BackendAPIError, BackendClientError
from ai.backend.client.multipart import upload_form
from ai.backend.client.urls import host_of, normal_url, raw_target
from ai.backend.client.wire import Call, encode_segment, prepare_request, sign_headers
from ai.backend.common.signing import SignedParts, parse_authorization, sign


def config(hash_type: str = "sha256") -> APIConfig:
    return APIConfig(endpoint="http://Host:8080/pre", access_key="AK", secret_key="SK", hash_type=hash_type)


def test_a_request_is_signed_as_the_server_verifies_it() -> None:
    url = "http://host:8080/pre/session/a%2Fb?x=%C3%BC+y"
    headers = sign_headers(config(), "GET", url, "application/json; charset=utf-8")
    parts = SignedParts(
        method="GET",
        raw_target="/pre/session/a%2Fb?x=%C3%BC+y",
        date=headers["Date"],
        host="host:8080",
        content_type="application/json",
        version=headers["X-BackendAI-Version"],
    )
    credential = parse_authorization(headers["Authorization"])
    assert credential.access_key == "AK"
    assert credential.signature == sign(parts, "SK") != sign(parts, "other")


def test_the_hash_can_be_chosen() -> None:
    headers = sign_headers(config(hash_type="sha3_256"), "GET", "http://host:8080/", None)
    assert parse_authorization(headers["Authorization"]).hash_name == "sha3_256"


def test_anonymous_requests_are_not_signed() -> None:
    anonymous = APIConfig(endpoint="http://h", access_key="")
    assert "Authorization" not in sign_headers(anonymous, "GET", "http://h/", None)


def test_path_segments_are_encoded_as_the_specification_asks() -> None:
    assert encode_segment("a/b c+ü%") == "a%2Fb%20c%2B%C3%BC%25"
    assert encode_segment("~()*!.'") == "~()*!.'"


def test_a_text_without_utf8_is_refused() -> None:
    name = "bad\udcff"
    with pytest.raises(BackendClientError, match=r"'bad\\udcff' cannot"):
        encode_segment(name)
    for call in (
        Call(method="POST", path="/", json={"name": name}),
        Call(method="GET", path="/", params={"name": name}),
        Call(method="POST", path="/", form=partial(upload_form, [(name, b"")])),
    ):
        with pytest.raises(BackendClientError, match=r"bad\\udcff"):
            prepare_request(config(), call)


def test_an_error_reads_as_one_sentence() -> None:
    data = {
        "type": "https://x/probs/invalid-api-params",
        "title": "Bad.",
        "msg": "No good.",
        "data": {"image": "required"},
    }
    assert str(BackendAPIError(400, "Bad Request", data)) == "No good. (image: required) [400 invalid-api-params]"
    assert str(BackendAPIError(502, "Bad Gateway")) == "Bad Gateway [502 generic-error]"
    assert str(BackendAPIError(599, "", {})) == "HTTP status 599 [599 generic-error]"


@pytest.mark.parametrize(
    ("text", "url", "host"),
    [
        ("HTTP://Host:8080/pre/", "http://host:8080/pre/", "host:8080"),
        ("http://h:80", "http://h:80", "h"),
        ("https://h:443/x y", "https://h:443/x%20y", "h"),
        ("https://h:80", "https://h:80", "h:80"),
        ("http://[::1]:8091", "http://[::1]:8091", "[::1]:8091"),
        ("http://b\u00fccher.example", "http://xn--bcher-kva.example", "xn--bcher-kva.example"),
    ],
)
def test_endpoints_are_normalized_as_the_host_header_has_them(text: str, url: str, host: str) -> None:
    assert normal_url(text) == url
    assert host_of(url) == host


@pytest.mark.parametrize("text", ["http://", "h:80", "ftp://h", "http://h:x", "http://h:99999", "http://h:0"])
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"endpoint|[Pp]ort"):
        normal_url(text)


def test_the_target_is_what_is_on_the_wire() -> None:
    assert raw_target("http://h") == "/"
    assert raw_target("http://h/p%2Fq?a=%C3%BC+b") == "/p%2Fq?a=%C3%BC+b"
