"""Lists are read page by page, and an object of another form costs no other one anything."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.decoding import Undecodable
from ai.backend.node.kube_api.errors import ServerFailed, VersionExpired
from ai.backend.node.kube_api.resources import NODES, RESOURCE_CLAIMS


class Pages(KubeApi):
    """Answers each request of a list with the next page."""

    def __init__(self, *pages: bytes | Exception) -> None:
        self._pages = list(pages)
        self.queries: list[dict[str, str]] = []

    async def request(self, method: str, path: str, *, query: Any = None, **_: Any) -> bytes:
        self.queries.append(dict(query))
        answer = self._pages.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def page(*items: Any, continue_: str = "") -> bytes:
    return json.dumps({"metadata": {"resourceVersion": "30", "continue": continue_}, "items": items}).encode()


def node(name: str, **fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": "4"}, **fields}


async def test_every_page_is_read_around_an_object_of_another_form() -> None:
    odd = node("odd", spec={"taints": "all"})
    api = Pages(page(node("a"), odd, node("b"), continue_="more"), page(node("c")))
    listed, version = await api.list_readable(NODES)
    assert [one.metadata.name for one in listed] == ["a", "odd", "b", "c"]
    assert [isinstance(one, Undecodable) for one in listed] == [False, True, False, False]
    assert version == "30"
    assert [query.get("continue") for query in api.queries] == [None, "more"]


async def test_a_list_that_must_be_whole_names_the_object_of_another_form() -> None:
    with pytest.raises(ServerFailed, match=r"nodes odd has another form: .*taints"):
        await Pages(page(node("odd", spec={"taints": "all"}))).list(NODES)


async def test_a_claim_with_deep_parameters_is_listed() -> None:
    deep = b"[" * 5000 + b"]" * 5000
    body = page({"metadata": {"name": "deep", "namespace": "lab"}, "spec": "DEEP"}).replace(b'"DEEP"', deep)
    ((claim,), _) = await Pages(body).list(RESOURCE_CLAIMS)
    assert claim.key == ("lab", "deep")


@pytest.mark.parametrize("item", [None, 7, {"metadata": {"name": 7}}])
async def test_what_is_no_object_is_a_failure_of_the_server(item: Any) -> None:
    api = Pages(page(item, node("odd", spec=7)))
    with pytest.raises(ServerFailed, match=r"listed something that is no object|answered something else"):
        await api.list_readable(NODES)


async def test_a_list_whose_next_page_has_expired_is_no_list() -> None:
    with pytest.raises(VersionExpired):
        await Pages(page(node("a"), continue_="old"), VersionExpired("the provided continue is too old")).list(NODES)
