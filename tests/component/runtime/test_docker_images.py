"""Images of a real registry on a real engine: fetched, refused, removed, and made of sessions."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import sys
import tarfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ai.backend.common.errors import (
    BackendError,
    Conflict,
    ImageMissing,
    ImageNotFound,
    InvalidInput,
    LimitExceeded,
    NotFound,
    RegistryRefused,
    RegistryUnavailable,
    StorageFull,
    WorkloadError,
)
from ai.backend.common.ids import KernelId, SessionId
from ai.backend.plugin.crash_points import VARIABLE
from ai.backend.plugin.runtime import CommitRequest, ImageRequest, WorkloadKey, WorkloadSpec
from ai.backend.runtime.docker.archives import rewrite
from ai.backend.runtime.docker.pulls import registry_error
from ai.backend.runtime.docker.runtime import DockerRuntime
from ai.backend.runtime.docker.settings import DockerRuntimeSettings
from tests.support.docker_engine import CACHE, PYTHON_IMAGE, DockerEngine, remember_images
from tests.support.docker_registry import PASSWORD, USER, DockerRegistry, running_registry

pytestmark = [pytest.mark.needs("docker", "registry")]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerRegistry]:
    with running_registry(tmp_path_factory.mktemp("registry") / "r", is_closed=True) as started:
        yield started


@pytest.fixture(scope="module")
def image(registry: DockerRegistry, docker_engine: DockerEngine) -> str:
    """In the registry, and not on the engine."""
    return registry.push(docker_engine, PYTHON_IMAGE, "lab/python", "1")


@pytest.fixture
async def runtime(tmp_path: Path, docker_engine: DockerEngine, known_images: Path) -> AsyncIterator[DockerRuntime]:
    remember_images(tmp_path / "state", known_images)
    settings = DockerRuntimeSettings(
        docker_host=docker_engine.host,
        interpreter_directory=CACHE / "interpreter",
        root_filesystem="writable",
        commit_directory=tmp_path / "archives",
    )
    runtime = DockerRuntime(settings, tmp_path / "state")
    await runtime.setup()
    yield runtime
    for view in await runtime.list_workloads():
        await runtime.remove(view.key)
    await runtime.shutdown()


def wanted(name: str, **more: Any) -> ImageRequest:
    return ImageRequest(name=name, **{"username": USER, "password": PASSWORD, **more})


def silent(current: int, total: int) -> None: ...


def spec_of(name: str, **more: Any) -> WorkloadSpec:
    key = WorkloadKey(kernel_id=KernelId(uuid4()), attempt=1)
    return WorkloadSpec(key=key, session_id=SessionId(uuid4()), image=name, **more)


def forget(engine: DockerEngine, name: str) -> None:
    engine.call("DELETE", f"/images/{name}?force=1")


async def test_an_archive_becomes_an_image_and_replaces_no_other(
    runtime: DockerRuntime, docker_engine: DockerEngine, tmp_path: Path
) -> None:
    saved = tmp_path / "saved.tar"
    await runtime._engine.save(PYTHON_IMAGE, saved)
    with pytest.raises(Conflict, match="would replace the image"):
        await runtime.load_image("team/tool:1", saved)
    plain = tmp_path / "plain.tar"
    with tarfile.open(saved) as source, tarfile.open(plain, "w") as target:
        for member in source:
            content = source.extractfile(member) if member.isfile() else None
            if member.name == "manifest.json" and content is not None:
                [manifest] = json.load(content)
                text = json.dumps([{**manifest, "RepoTags": None}]).encode()
                member.size, content = len(text), io.BytesIO(text)
            if member.name != "repositories":
                target.addfile(member, content)
    await runtime.load_image("team/tool:1", plain)
    assert not await runtime.lacks_image(wanted("team/tool:1"))
    forget(docker_engine, "team/tool:1")
    (tmp_path / "bad.tar").write_bytes(b"x" * 2000)
    with pytest.raises(InvalidInput, match="no archive"):
        await runtime.load_image("team/tool:1", tmp_path / "bad.tar")


async def test_an_image_is_fetched_once_for_all(
    runtime: DockerRuntime, image: str, registry: DockerRegistry, docker_engine: DockerEngine
) -> None:
    forget(docker_engine, image)
    assert await runtime.lacks_image(wanted(image))
    assert not await runtime.lacks_image(wanted(image, when=""))
    with pytest.raises(ImageMissing):
        await runtime.create(spec_of(image))
    told: list[tuple[int, int]] = []
    await asyncio.gather(*(runtime.pull_image(wanted(image), lambda *numbers: told.append(numbers)) for _ in range(5)))
    assert not await runtime.lacks_image(wanted(image))
    digest = registry.call("HEAD", "/v2/lab/python/manifests/1")[1]["Docker-Content-Digest"]
    found = next(i for i in await runtime.list_images() if i.name == image)
    assert found.digest == digest
    assert not await runtime.lacks_image(wanted(image, when="digest", digest=digest))
    assert await runtime.lacks_image(wanted(image, when="digest", digest="sha256:" + "0" * 64))
    await runtime.remove_image(image)
    await runtime.remove_image(image)
    assert await runtime.lacks_image(wanted(image))


async def test_registries_refuse_lack_and_vanish(runtime: DockerRuntime, image: str, registry: DockerRegistry) -> None:
    missing = image.replace("lab/python:1", "lab/python:none")
    with pytest.raises(RegistryRefused):
        await runtime.pull_image(wanted(missing, password="wrong"), silent)
    with pytest.raises(RegistryRefused):
        await runtime.pull_image(wanted(missing, username="", password=""), silent)
    with pytest.raises(ImageNotFound):
        await runtime.pull_image(wanted(missing), silent)
    registry.stop()
    try:
        with pytest.raises(RegistryUnavailable):
            await runtime.pull_image(wanted(missing), silent)
    finally:
        registry.start()


async def test_a_pull_ends_with_the_last_that_waits(runtime: DockerRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def stuck(*_: object) -> AsyncIterator[dict[str, Any]]:
        began.set()
        try:
            await asyncio.Event().wait()
            yield {}
        finally:
            ended.set()

    monkeypatch.setattr(runtime._engine, "pull", stuck)
    waiting = [asyncio.create_task(runtime.pull_image(wanted("127.0.0.1:1/a:1"), silent)) for _ in range(2)]
    await began.wait()
    waiting[0].cancel()
    await asyncio.wait({waiting[0]})
    assert not ended.is_set()
    waiting[1].cancel()
    await asyncio.wait_for(ended.wait(), 30)


@pytest.mark.parametrize(
    ("message", "status", "kind"),
    [
        ("write /x: no space left on device", 0, StorageFull),
        ("pull access denied for x, repository does not exist or may require 'docker login'", 404, RegistryRefused),
        ("manifest for x:1 not found: manifest unknown", 404, ImageNotFound),
        ("no matching manifest for linux/amd64 in the manifest list entries", 0, ImageNotFound),
        ('Get "http://x/v2/": dial tcp 127.0.0.1:1: connect: connection refused', 500, RegistryUnavailable),
    ],
)
def test_what_the_engine_says_is_understood(message: str, status: int, kind: type[BackendError]) -> None:
    assert type(registry_error("x:1", message, status)) is kind


async def run_in(runtime: DockerRuntime, engine: DockerEngine, key: WorkloadKey, code: str) -> None:
    """As the session's user, beside its runner."""
    container = (await runtime.inspect(key)).workload_id  # type: ignore[union-attr]  # it runs
    body = json.dumps({"Cmd": ["python3", "-c", code], "User": "59500", "AttachStdout": True})
    status, made = engine.call("POST", f"/containers/{container}/exec", body.encode())
    assert status == 201, made
    assert engine.call("POST", f"/exec/{made['Id']}/start", b'{"Detach": false}')[0] == 200
    assert engine.call("GET", f"/exec/{made['Id']}/json")[1]["ExitCode"] == 0


SECRET = "hunter2-of-the-user"


async def test_a_session_becomes_an_archive_without_what_is_its_own(
    runtime: DockerRuntime, docker_engine: DockerEngine, tmp_path: Path
) -> None:
    spec = spec_of(PYTHON_IMAGE, environ={"TOKEN": SECRET}, labels={"ai.backend.owner": SECRET})
    await runtime.create(spec)
    await run_in(runtime, docker_engine, spec.key, "open('/tmp/x', 'w'); open('/home/work/mine', 'w')")
    asked = CommitRequest(folder="u@example.org", filename="s-1.tar.gz", labels={"k": "v"})
    made = await runtime.commit(spec.key, asked, silent)
    archive = tmp_path / "archives" / "u@example.org" / "s-1.tar.gz"
    assert (made.place, made.size_bytes) == (str(archive), archive.stat().st_size)
    with tarfile.open(archive) as tar:
        manifest = json.load(tar.extractfile("manifest.json"))  # type: ignore[arg-type]  # it is a file
        config = json.load(tar.extractfile(manifest[0]["Config"]))  # type: ignore[arg-type]  # likewise
    own = docker_engine.call("GET", f"/images/{PYTHON_IMAGE}/json")[1]["Config"]
    assert config["config"] == {**own, "Labels": {"k": "v"}}
    assert SECRET not in json.dumps(config)
    assert "backendai" not in json.dumps(config)
    status, said = docker_engine.call("POST", "/images/load?quiet=1", archive)
    assert status == 200, said
    loaded = "base/python:s-1"
    try:
        assert docker_engine.call("GET", f"/images/{loaded}/json")[1]["Id"] == made.config_digest
        again = spec_of(loaded)
        await runtime.create(again)
        await run_in(runtime, docker_engine, again.key, "import os; assert not os.path.exists('/home/work/mine')")
        await runtime.remove(again.key)
    finally:
        forget(docker_engine, loaded)
    assert nothing_is_left(docker_engine, tmp_path)
    with pytest.raises(NotFound):
        await runtime.commit(again.key, asked, silent)


def nothing_is_left(engine: DockerEngine, tmp_path: Path) -> bool:
    tags = [tag for image in engine.call("GET", "/images/json")[1] for tag in image.get("RepoTags") or ()]
    unfinished = tmp_path / "archives" / ".unfinished"
    return not [t for t in tags if "commit" in t] and not (unfinished.exists() and any(unfinished.iterdir()))


async def test_a_session_becomes_an_image_of_a_registry(
    runtime: DockerRuntime, docker_engine: DockerEngine, registry: DockerRegistry, tmp_path: Path
) -> None:
    spec = spec_of(PYTHON_IMAGE)
    await runtime.create(spec)
    name = f"{registry.name}/lab/mine:1"
    made = await runtime.commit(
        spec.key, CommitRequest(folder="u", filename="x", labels={"k": "v"}, push=wanted(name)), silent
    )
    assert (made.place, dict(made.labels)["k"]) == (name, "v")
    status, headers, body = registry.call("GET", "/v2/lab/mine/manifests/1")
    assert (status, headers["Docker-Content-Digest"]) == (200, made.digest)
    assert json.loads(body)["config"]["digest"] == made.config_digest
    other = spec_of(name)
    await runtime.create(other)
    with pytest.raises(Conflict, match="in use"):
        await runtime.remove_image(name)
    await runtime.remove(other.key)
    await runtime.remove_image(name)
    denied = CommitRequest(folder="u", filename="x", push=wanted(name, password="wrong"))
    with pytest.raises(RegistryRefused):
        await runtime.commit(spec.key, denied, silent)
    registry.stop()
    try:
        with pytest.raises(RegistryUnavailable):
            await runtime.commit(spec.key, CommitRequest(folder="u", filename="x", push=wanted(name)), silent)
    finally:
        registry.start()
    assert nothing_is_left(docker_engine, tmp_path)


async def test_commits_that_cannot_be(
    runtime: DockerRuntime, docker_engine: DockerEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(PYTHON_IMAGE)
    await runtime.create(spec)
    asked = CommitRequest(folder="u", filename="x.tar.gz")
    for bad in (CommitRequest(folder="..", filename="x"), CommitRequest(folder="u", filename="a/b")):
        with pytest.raises(BackendError, match="name of a file"):
            await runtime.commit(spec.key, bad, silent)
    entered, go_on = asyncio.Event(), asyncio.Event()
    save: Callable[..., Any] = runtime._engine.save

    async def slow(*arguments: Any) -> None:
        entered.set()
        await go_on.wait()
        await save(*arguments)

    monkeypatch.setattr(runtime._engine, "save", slow)
    first = asyncio.create_task(runtime.commit(spec.key, asked, silent))
    await entered.wait()
    with pytest.raises(Conflict):
        await runtime.commit(spec.key, asked, silent)
    first.cancel()
    await asyncio.wait({first})
    assert nothing_is_left(docker_engine, tmp_path)

    async def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(runtime._engine, "save", full)
    with pytest.raises(StorageFull):
        await runtime.commit(spec.key, asked, silent)
    free = runtime.settings.reserved_bytes + 1024
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": free}))
    with pytest.raises(StorageFull, match="may need"):
        await runtime.commit(spec.key, asked, silent)
    (tmp_path / "archives" / "u").mkdir(exist_ok=True)
    for number in range(16):
        (tmp_path / "archives" / "u" / f"{number}.tar.gz").touch()
    with pytest.raises(LimitExceeded, match="remove some"):
        await runtime.commit(spec.key, asked, silent)
    assert nothing_is_left(docker_engine, tmp_path)


async def test_what_a_cut_off_commit_left_is_removed_at_the_next_start(
    runtime: DockerRuntime, docker_engine: DockerEngine, tmp_path: Path
) -> None:
    left = tmp_path / "archives" / ".unfinished" / "k"
    left.mkdir(parents=True)
    (left / "saved.tar").write_bytes(b"x")
    name = runtime._commits._repository
    assert docker_engine.call("POST", f"/images/{PYTHON_IMAGE}/tag?repo={name}&tag=1")[0] == 201
    assert not [i for i in await runtime.list_images() if i.name.startswith(name)]
    await runtime._commits.clean()
    assert nothing_is_left(docker_engine, tmp_path)


@pytest.mark.parametrize("point", ["pull.begun", "commit.made", "commit.saved"])
async def test_nothing_is_left_of_an_agent_that_is_killed(
    image: str, docker_engine: DockerEngine, known_images: Path, tmp_path: Path, point: str
) -> None:
    forget(docker_engine, image)
    remember_images(tmp_path / "state", known_images)
    settings = {"docker_host": docker_engine.host, "interpreter_directory": str(CACHE / "interpreter")}
    settings["commit_directory"] = str(tmp_path / "archives")
    login = {"name": image, "username": USER, "password": PASSWORD}
    driver = [sys.executable, str(Path(__file__).with_name("image_driver.py")), str(tmp_path / "state")]
    killed = await asyncio.create_subprocess_exec(
        *driver, json.dumps(settings), json.dumps(login), env={**os.environ, VARIABLE: point}
    )
    assert await asyncio.wait_for(killed.wait(), 60) == -signal.SIGKILL
    runtime = DockerRuntime(DockerRuntimeSettings(**settings), tmp_path / "state")
    await runtime.setup()
    try:
        assert nothing_is_left(docker_engine, tmp_path)
        assert not list((tmp_path / "archives").rglob("*.tar.gz"))
        await runtime.pull_image(wanted(image), silent)
        for view in await runtime.list_workloads():
            await runtime.remove(view.key)
    finally:
        await runtime.shutdown()
    assert nothing_is_left(docker_engine, tmp_path)


def test_archives_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    def put(**files: Any) -> Path:
        path = tmp_path / "a.tar"
        with tarfile.open(path, "w") as tar:
            for name, content in files.items():
                body = content if isinstance(content, bytes) else json.dumps(content).encode()
                entry = tarfile.TarInfo(name.replace("manifest", "manifest.json"))
                entry.size = len(body)
                tar.addfile(entry, io.BytesIO(body))
        return path

    for source in (
        put(),
        put(manifest=b"{"),
        put(manifest=[]),
        put(manifest=[{"Config": "c", "Layers": ["l"]}], c={}),
        put(manifest=[{"Config": "c", "Layers": ["l"]}], c=[]),
    ):
        with pytest.raises(WorkloadError):
            rewrite(source, tmp_path / "b.tar", "a:1", {}, False)
