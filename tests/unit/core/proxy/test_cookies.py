from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai.backend.core.proxy.cookies import (
    accepts_app_cookie,
    is_local_redirect,
    permit_name,
    set_permit_cookie,
    split_cookies,
)

CIRCUIT = UUID(int=7)
NAME, SECURE_NAME = (permit_name(CIRCUIT, is_secure=secure) for secure in (False, True))
OTHER = permit_name(UUID(int=8), is_secure=False)


def test_a_permit_reaches_no_app_whatever_circuit_it_is_of() -> None:
    values, passed = split_cookies([f"a=1; {NAME}=secret; {OTHER}=other; b=2", f"{SECURE_NAME}=third"], NAME)
    assert values == ["secret"]
    assert passed == "a=1; b=2"


@pytest.mark.parametrize("spelling", [NAME.upper(), f" {NAME} ", f"\t{NAME}", SECURE_NAME.lower()])
def test_other_spellings_of_the_name_reach_no_app(spelling: str) -> None:
    assert split_cookies([f"a=1;{spelling}=secret"], "")[1] == "a=1"


@pytest.mark.parametrize(
    "name", ["backendai", "__Host-backendai", "backendai-8090", "BackendAI-ticket", "__host-backendai"]
)
def test_a_login_session_of_a_console_at_the_same_host_reaches_no_app(name: str) -> None:
    assert split_cookies([f"a=1; {name}=token; b=2"], NAME) == ([], "a=1; b=2")
    assert not accepts_app_cookie(f"{name}=mine; Path=/; Secure", "a1.apps.example")


@given(st.lists(st.text(alphabet="ab=; \t-" + NAME, max_size=60), max_size=4))
def test_no_arrangement_of_cookies_passes_a_permit(lines: list[str]) -> None:
    passed = split_cookies([*lines, f"{NAME}=secret"], NAME)[1]
    assert not any(part.partition("=")[0].strip().lower().endswith(NAME) for part in passed.split(";"))


@pytest.mark.parametrize(
    ("cookie", "accepted"),
    [
        ("session=1; Path=/", True),
        ("session=1; Domain=a1.apps.example", True),
        ("session=1; Domain=.a1.apps.example", True),
        ("session=1; Domain=apps.example", False),
        ("session=1; domain = .APPS.example", False),
        ("session=1; Domain=other.apps.example", False),
        (f"{NAME}=forged", False),
        (f" {NAME.upper()} =forged; Path=/", False),
        (f"{SECURE_NAME}=forged; Secure; Path=/", False),
        (f"{OTHER}=forged", False),
        (f"={NAME}=forged; Path=/lab", False),
        (f" == {NAME}=forged", False),
        ("=nameless", True),
        ("other=" + NAME, True),
    ],
)
def test_cookies_of_apps_stay_with_them(cookie: str, accepted: bool) -> None:
    assert accepts_app_cookie(cookie, "a1.apps.example") is accepted


def test_a_permit_is_of_its_host_alone() -> None:
    cookie = set_permit_cookie(SECURE_NAME, "value", is_secure=True)
    assert cookie.startswith("__Host-backendai-permit-")
    assert "Domain" not in cookie
    assert {"Path=/", "HttpOnly", "SameSite=Lax", "Secure"} <= set(cookie.split("; "))
    assert permit_name(uuid4(), is_secure=False) != NAME


@pytest.mark.parametrize("target", ["/", "/lab", "/lab?next=//evil", "/a/../b", "/lab?x=1#part", "/@evil", "/:80"])
def test_paths_are_followed(target: str) -> None:
    assert is_local_redirect(target)


@pytest.mark.parametrize(
    "target",
    [
        "",
        "lab",
        "//evil",
        "///evil",
        "/\\evil",
        "\\/evil",
        "/a\\b",
        "/\t/evil",
        "/a\r\nX: y",
        "/ /evil",
        "/∕evil",
        "http://evil",
        "javascript:x",
        "/" + "a" * 4096,
    ],
)
def test_what_leads_elsewhere_is_not_followed(target: str) -> None:
    assert not is_local_redirect(target)


@given(st.text(max_size=30))
def test_a_followed_target_has_one_slash_and_no_controls(text: str) -> None:
    if is_local_redirect(text):
        assert text.startswith("/")
        assert text[1:2] not in ("/", "\\")
        assert text.isascii()
        assert text.isprintable()
