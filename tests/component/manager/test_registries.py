"""Scans of registries: a real one of Docker's, a Harbor as documented, and servers that are down or lie."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import pytest
from aiohttp import web

from ai.backend.common.errors import AddressRefused, BackendError, NotFound, RegistryRefused, RegistryUnavailable
from ai.backend.common.structs import replace
from ai.backend.infra.http import registry as http
from ai.backend.manager.images.client.manifests import MAX_MANIFEST_BYTES
from ai.backend.manager.images.client.scanner import scan_registry
from ai.backend.manager.images.model import ContainerRegistry, ContainerRegistryType, ScannedImage, ScanStep
from tests.support.docker_registry import CONFIG, INDEX, MANIFEST, PASSWORD, USER, DockerRegistry, running_registry
from tests.support.fake_harbor import FakeHarbor, artifact, serving, told

LABELS = {"ai.backend.kernelspec": "1", "ai.backend.resource.min.cpu": "2"}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(http, "_MAX_PAUSE_S", 0.001)


async def scan(registry: ContainerRegistry) -> tuple[dict[str, ScannedImage], list[ScanStep]]:
    steps = [step async for step in scan_registry(registry)]
    return {f"{i.name} {i.architecture}": i for step in steps for i in step.images}, steps


# ---- Docker's own


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerRegistry]:
    with running_registry(tmp_path_factory.mktemp("registry") / "r", is_closed=True) as started:
        yield started


@pytest.mark.needs("registry")
async def test_a_real_registry_is_read(real: DockerRegistry) -> None:
    plain = real.put_image("stable/python", "3.11", "latest", labels=LABELS)
    arm = real.put_image("stable/multi", labels=LABELS, architecture="arm64")
    amd = real.put_image("stable/multi", labels=LABELS)
    index = real.put_index("stable/multi", "1", {"amd64": amd, "arm64": arm})
    real.put_image("stable/bad", "1", labels={"ai.backend.kernelspec": "7"})
    real.put_image("other/x", "1")
    registry = ContainerRegistry(name=real.name, url=real.url, username=USER, password=PASSWORD)
    found, steps = await scan(registry)
    assert set(found) == {
        f"{real.name}/stable/python:3.11 x86_64",
        f"{real.name}/stable/python:latest x86_64",
        f"{real.name}/stable/multi:1 x86_64",
        f"{real.name}/stable/multi:1 aarch64",
        f"{real.name}/other/x:1 x86_64",
    }
    python = found[f"{real.name}/stable/python:3.11 x86_64"]
    assert (python.digest, dict(python.labels), python.project) == (plain, LABELS, "stable")
    assert found[f"{real.name}/stable/multi:1 aarch64"].digest == index
    (skipped,) = [step for step in steps if step.skipped]
    assert (skipped.current, "kernelspec" in str(skipped.skipped)) == ("stable/bad:1", True)
    assert (steps[-1].done, steps[-1].total) == (5, 5)
    some, _ = await scan(replace(registry, projects=("other",)))
    assert [image.name for image in some.values()] == [f"{real.name}/other/x:1"]
    for wrong in (replace(registry, password="no"), replace(registry, username="")):
        with pytest.raises(RegistryRefused):
            await scan(wrong)


# ---- Harbor


async def test_harbor_is_read_in_pages_and_not_all_at_once() -> None:
    many = {f"deep/er-{n}": [artifact(n, "1", "latest", labels=LABELS)] for n in range(130)}
    index = artifact(
        900,
        "2",
        references=[
            {"child_digest": f"sha256:{901:064x}", "platform": {"os": "linux", "architecture": "arm64"}},
            {"child_digest": f"sha256:{902:064x}", "platform": {"os": "unknown", "architecture": "unknown"}},
        ],
    )
    harbor = FakeHarbor(
        {
            "stable": many,
            "community": {
                "multi": [index, artifact(901, architecture="arm64"), artifact(902)],
                "chart": [artifact(950, "1", type="CHART")],
            },
        }
    )
    async with serving(harbor.handle) as url:
        registry = ContainerRegistry(
            name="cr.test", url=url, type=ContainerRegistryType.HARBOR2, username=harbor.user, password=harbor.password
        )
        found, steps = await scan(registry)
        assert len(found) == 261
        assert found["cr.test/community/multi:2 aarch64"].digest == f"sha256:{900:064x}"
        assert dict(found["cr.test/stable/deep/er-7:1 x86_64"].labels) == LABELS
        assert [step.skipped for step in steps if step.skipped] == ["it is no image but CHART"]
        assert 1 < harbor.most <= http.CONCURRENCY
        only, _ = await scan(replace(registry, projects=("community",)))
        assert len(only) == 1
        with pytest.raises(RegistryRefused):
            await scan(replace(registry, password="wrong"))
        with pytest.raises(BackendError):
            await scan(replace(registry, projects=("none",), type=ContainerRegistryType.DOCKER))


# ---- what may be out there


def image_of(config: Any, media: str = CONFIG) -> tuple[bytes, bytes]:
    """A manifest and its configuration."""
    body = json.dumps(config).encode()
    digest = f"sha256:{sha256(body).hexdigest()}"
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": media, "size": len(body), "digest": digest},
        "layers": [],
    }
    return json.dumps(manifest).encode(), body


GOOD = image_of({"architecture": "amd64", "os": "linux", "config": {"Labels": LABELS}})


class OneImage:
    """A registry with ``a:1``; ``answers`` replaces parts of it by what a path begins with."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.seen: list[tuple[str, str | None]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append((request.path, request.headers.get("Authorization")))
        kind = next(
            (k for k in ("catalog", "tags", "manifests", "blobs", "token") if f"/{k}" in request.path.replace("_", "")),
            "",
        )
        if kind in self.answers:
            answer = self.answers[kind]
            made = answer(self, request) if callable(answer) else answer
            return made if isinstance(made, web.StreamResponse) else told(made)
        match kind:
            case "catalog":
                return told({"repositories": ["a"]})
            case "tags":
                return told({"name": "a", "tags": ["1"]})
            case "manifests":
                return web.Response(body=GOOD[0], content_type=MANIFEST)
            case "blobs":
                return web.Response(body=GOOD[1])
        return web.Response(status=404)


async def scan_one(server: OneImage, **more: Any) -> tuple[dict[str, ScannedImage], list[ScanStep]]:
    async with serving(server.handle) as url:
        server.url = url
        return await scan(ContainerRegistry(name="cr.test", url=url, **more))


def raw(body: bytes) -> Any:
    return lambda *_: web.Response(body=body)


def away(location: str, status: int = 307) -> Any:
    return lambda *_: web.Response(status=status, headers={"Location": location})


async def test_the_server_of_these_tests_is_read() -> None:
    found, _ = await scan_one(OneImage())
    assert list(found) == ["cr.test/a:1 x86_64"]


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ({"manifests": raw(b"{")}, "not readable"),
        ({"manifests": raw(b'{"schemaVersion": 1}')}, "schema 1"),
        ({"manifests": raw(b'{"schemaVersion": 2, "manifests": []}')}, "nothing for Linux"),
        ({"manifests": raw(image_of({}, "application/vnd.cncf.helm.config.v1+json")[0])}, "no image but"),
        ({"blobs": raw(b"other content")}, "another content"),
        ({"manifests": raw(b"[" * 100_000)}, "not readable"),
    ],
)
async def test_an_image_that_makes_no_sense_is_skipped(answers: dict[str, Any], problem: str) -> None:
    found, (step,) = await scan_one(OneImage(**answers))
    assert not found
    assert problem in str(step.skipped)


@pytest.mark.parametrize(
    "answers",
    [
        {"manifests": lambda *_: web.Response(status=404)},
        {"manifests": raw(b"x" * (MAX_MANIFEST_BYTES + 1))},
        {"blobs": lambda *_: web.Response(status=500)},
        {"blobs": away("http://169.254.169.254/latest/meta-data")},
        {"blobs": lambda server, _: web.Response(status=302, headers={"Location": f"{server.url}/v2/a/blobs/again"})},
    ],
)
async def test_what_cannot_be_read_now_is_told_apart(answers: dict[str, Any]) -> None:
    found, (step,) = await scan_one(OneImage(**answers))
    assert not found
    assert step.failed


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ({"catalog": {"repositories": 7}}, RegistryUnavailable),
        ({"catalog": raw(b"<html>")}, RegistryUnavailable),
        ({"catalog": lambda *_: web.Response(status=503)}, RegistryUnavailable),
        ({"catalog": lambda *_: web.Response(status=403)}, RegistryRefused),
        ({"catalog": lambda *_: web.Response(status=404)}, NotFound),
        ({"catalog": lambda *_: told({"repositories": ["a"]}, Link='</v2/_catalog?last=a>; rel="next"')}, BackendError),
        ({"catalog": away("ftp://x/y")}, AddressRefused),
        ({"catalog": away("http://169.254.169.254/")}, AddressRefused),
        ({"catalog": lambda *_: web.Response(status=401)}, RegistryRefused),
        (
            {"catalog": lambda *_: web.Response(status=401, headers={"WWW-Authenticate": 'Bearer realm="file:///x"'})},
            RegistryRefused,
        ),
    ],
)
async def test_a_registry_that_lies_is_left_alone(answers: dict[str, Any], kind: type[BackendError]) -> None:
    with pytest.raises(kind):
        await scan_one(OneImage(**answers))


async def test_a_registry_that_is_down_is_told_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(RegistryUnavailable, match="does not answer"):
        await scan(ContainerRegistry(name="cr.test", url=url))


async def test_a_registry_that_goes_away_is_given_up() -> None:
    asked = 0

    def gone(*_: Any) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(status=502)

    tags = {"tags": [f"t{n}" for n in range(2000)]}
    with pytest.raises(RegistryUnavailable):
        await scan_one(OneImage(tags=tags, manifests=gone))
    assert asked < 100


async def test_thousands_of_tags_are_read_with_few_requests_at_a_time() -> None:
    now = most = 0

    async def counted(request: web.Request) -> web.StreamResponse:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        return await server.handle(request)

    server = OneImage(tags={"tags": [f"t{n}" for n in range(1000)]})
    async with serving(counted) as url:
        found, steps = await scan(ContainerRegistry(name="cr.test", url=url))
    assert len(found) == 1000
    assert steps[-1].done == steps[-1].total == 1000
    assert most <= http.CONCURRENCY


def challenge(realm: str) -> Any:
    def answer(server: OneImage, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") == "Bearer good":
            return told({"repositories": ["a"]})
        where = realm or f"{server.url}/token"
        return web.Response(status=401, headers={"WWW-Authenticate": f'Bearer realm="{where}",service="s"'})

    return answer


async def test_tokens_are_fetched_and_kept() -> None:
    server = OneImage(catalog=challenge(""), token={"access_token": "good", "expires_in": 300})
    found, _ = await scan_one(server, username="u", password="p")
    assert len(found) == 1
    (asked,) = [login for path, login in server.seen if path == "/token"]
    assert asked is not None
    assert asked.startswith("Basic ")


async def test_a_password_goes_nowhere_else_in_the_clear() -> None:
    server = OneImage(catalog=challenge("http://127.0.0.2:9/token"))
    with pytest.raises(RegistryRefused, match="in the clear"):
        await scan_one(server, username="u", password="p")
    elsewhere = OneImage()
    async with serving(elsewhere.handle) as other:
        moved = OneImage(blobs=away(other.replace("127.0.0.1", "localhost") + "/v2/a/blobs/x"), catalog=challenge(""),
                         token={"token": "good"})  # fmt: skip
        found, _ = await scan_one(moved, username="u", password="p")
    assert len(found) == 1
    assert elsewhere.seen == [("/v2/a/blobs/x", None)]


def test_indexes_are_of_one_kind() -> None:
    assert INDEX.endswith("list.v2+json")
