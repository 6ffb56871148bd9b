from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta

from ai.backend.common.errors import InvalidInput
from ai.backend.infra.http.decode import QuerySchema, check_json_type, convert, parse_json_object, rename_aliases
from ai.backend.infra.http.errors import UnsupportedMediaType
from ai.backend.infra.http.routes import Schema


class Inner(Schema, frozen=True):
    ports: list[int] = msgspec.field(default_factory=list)
    environ: dict[str, str] = msgspec.field(default_factory=dict)
    size: Annotated[int, Meta(ge=1)] = 1


class Body(Schema, frozen=True, rename={"max_wait": "maxWait"}):
    image: str
    max_wait: Annotated[int, Meta(ge=0)] = 0
    flag: bool = True
    config: Inner = msgspec.field(default_factory=Inner)


class Query(Schema, frozen=True):
    path: str = "/"
    files: list[str] = msgspec.field(default_factory=list)
    all: bool = False
    n: Annotated[int, Meta(le=5)] | None = None
    names: Annotated[list[str], Meta(max_length=100)] | None = None


def test_null_means_absent_where_there_is_a_default() -> None:
    body = convert({"image": "x", "maxWait": None, "flag": None, "config": {"ports": None}}, Body)
    assert body == Body(image="x")


class Change(Schema, frozen=True):
    tag: Annotated[str, Meta(max_length=64)] | msgspec.UnsetType | None = msgspec.UNSET
    names: Annotated[list[str], Meta(max_length=2)] | msgspec.UnsetType | None = msgspec.UNSET
    flag: bool | msgspec.UnsetType = msgspec.UNSET


def test_null_is_a_value_of_a_change_that_may_be_null() -> None:
    assert convert({"tag": None, "names": None, "flag": None}, Change) == Change(tag=None, names=None)
    assert convert({}, Change) == Change()
    with pytest.raises(InvalidInput) as caught:
        convert({"tag": None, "names": [1]}, Change)
    assert list(caught.value.data) == ["names[0]"]


def test_null_is_no_value_where_there_is_none() -> None:
    with pytest.raises(InvalidInput) as caught:
        convert({"image": None}, Body)
    assert list(caught.value.data) == ["image"]


def test_every_offending_field_is_named() -> None:
    raw = {
        "maxWait": -1,
        "flag": "yes",
        "tpyo": 1,
        "config": {"ports": [1, "x"], "environ": {"A": 1}, "size": 0, "more": None},
    }
    with pytest.raises(InvalidInput) as caught:
        convert(raw, Body)
    assert set(caught.value.data) == {
        "image",
        "maxWait",
        "flag",
        "tpyo",
        "config.ports[1]",
        "config.environ[...]",
        "config.size",
        "config.more",
    }
    assert caught.value.data["image"] == "required"
    assert caught.value.data["tpyo"] == "unknown field"
    assert "maxWait" in str(caught.value)


@pytest.mark.parametrize("raw", [b"[1]", b'"x"', b"{", b"\xff\xfe", b'{"a": 1} x', b"nul"])
def test_not_a_json_object(raw: bytes) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_json_object(raw)
    assert "body" in caught.value.data


@pytest.mark.parametrize("raw", [b"", b"  \r\n", b"{}"])
def test_no_body_is_the_empty_object(raw: bytes) -> None:
    assert parse_json_object(raw) == {}


@pytest.mark.parametrize("depth", [40, 5_000, 100_000])
def test_depth_is_bounded(depth: int) -> None:
    with pytest.raises(InvalidInput):
        parse_json_object(b'{"a":' + b"[" * depth + b"]" * depth + b"}")


def test_aliases() -> None:
    raw: dict[str, Any] = {"lang": "python", "config": {"cs": 3, "ports": []}, "clusterSize": 3, "gone": None}
    rename_aliases(raw, {"lang": "image", "config.cs": "clusterSize", "gone": "image"})
    assert raw == {"image": "python", "config": {"ports": []}, "clusterSize": 3}


def test_aliases_that_contradict() -> None:
    with pytest.raises(InvalidInput) as caught:
        rename_aliases({"lang": "a", "image": "b"}, {"lang": "image"})
    assert list(caught.value.data) == ["lang"]


def test_alias_into_something_that_is_no_object() -> None:
    with pytest.raises(InvalidInput):
        rename_aliases({"size": 1, "config": 5}, {"size": "config.size"})


def test_queries() -> None:
    schema = QuerySchema(Query, reserved=frozenset({"owner"}))
    query, reserved = schema.read("path=%2Fa+b&files=x&files=y&all=True&owner=ak&n=3")
    assert query == Query(path="/a b", files=["x", "y"], all=True, n=3)
    assert reserved == {"owner": "ak"}


def test_a_list_with_a_limit_has_one_element_or_many() -> None:
    schema = QuerySchema(Query)
    assert schema.read("names=a")[0].names == ["a"]
    assert schema.read("&".join(["names=a"] * 100))[0].names == ["a"] * 100


def test_whole_numbers_with_a_fraction_are_integers() -> None:
    raw = parse_json_object(b'{"image": "x", "maxWait": 30.0, "config": {"size": 1e2}}')
    assert convert(raw, Body) == Body(image="x", max_wait=30, config=Inner(size=100))
    assert parse_json_object(b'{"n": 0.5, "m": 1e300}') == {"n": 0.5, "m": 1e300}


def test_a_body_completes_a_query_which_wins() -> None:
    schema = QuerySchema(Query, reserved=frozenset({"owner"}))
    query, reserved = schema.read("files=q", {"files": ["b"], "path": "/b", "owner": "ak"})
    assert query == Query(path="/b", files=["q"])
    assert reserved == {"owner": "ak"}


@pytest.mark.parametrize(
    ("text", "field"), [("x=1", "x"), ("all=maybe", "all"), ("n=6", "n"), ("path=a&path=b", "path"), ("n=1.5", "n")]
)
def test_bad_queries(text: str, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        QuerySchema(Query).read(text)
    assert list(caught.value.data) == [field]


@pytest.mark.parametrize("text", ["path=%ff", "&".join(f"a{i}=1" for i in range(100))])
def test_malformed_queries(text: str) -> None:
    with pytest.raises(InvalidInput):
        QuerySchema(Query).read(text)


def test_content_types() -> None:
    for good in ("application/json", "application/problem+json", "text/plain", ""):
        check_json_type(good)
    with pytest.raises(UnsupportedMediaType):
        check_json_type("text/html")
