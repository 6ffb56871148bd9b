"""Images that an agent fetches before it makes kernels, and jobs on them, on a fake runtime."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ai.backend.common.errors import (
    BackendError,
    Conflict,
    ImageMissing,
    ImageNotFound,
    NotFound,
    NotSupported,
    RegistryRefused,
    RegistryUnavailable,
    StorageFull,
)
from ai.backend.common.states import KernelEventReason, KernelStatus
from ai.backend.common.structs import replace
from ai.backend.common.wire.agent import (
    CreateKernels,
    DestroyKernel,
    ImageJob,
    KernelSpec,
    RegistryAccess,
    RestartKernel,
)
from ai.backend.plugin.runtime import (
    CommitRequest,
    CommittedImage,
    ImageRequest,
    RuntimeInfo,
    TellProgress,
    WorkloadKey,
    WorkloadSpec,
    WorkloadView,
)
from tests.component.agent.conftest import Bench
from tests.support.agent_fakes import FakeRuntime

S, R = KernelStatus, KernelEventReason
IMAGE = "cr.test/lab/python:1"
SECRET = "the registry's password"
ACCESS = RegistryAccess(registry="cr.test", username="u", password=SECRET)


class Registry(FakeRuntime):
    """Lacks images until they are fetched; ``problem`` is what a fetch meets, ``gate`` what it waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.here: set[str] = set()
        self.pulls: list[ImageRequest] = []
        self.problem: BackendError | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.vanishes = False
        self.requests: list[ImageRequest | None] = []

    @property
    def made(self) -> list[Any]:
        return [call for call in self.calls if call[0] == "create"]

    async def lacks_image(self, wanted: ImageRequest) -> bool:
        return bool(wanted.when) and wanted.name not in self.here

    async def pull_image(self, wanted: ImageRequest, tell: TellProgress) -> None:
        self.pulls.append(wanted)
        tell(1, 2)
        await self.gate.wait()
        if self.problem is not None:
            raise self.problem
        self.here.add(wanted.name)

    async def remove_image(self, name: str) -> None:
        if name == "busy:1":
            raise Conflict("in use")
        self.here.discard(name)

    async def create(self, spec: WorkloadSpec) -> WorkloadView:
        if self.vanishes:
            raise ImageMissing("this node has no image")
        self.requests.append(spec.image_request)
        return await super().create(spec)

    async def commit(self, key: WorkloadKey, wanted: CommitRequest, tell: TellProgress) -> CommittedImage:
        tell(2, 2)
        return CommittedImage(place=f"/archives/{wanted.folder}/{wanted.filename}", size_bytes=7)


@pytest.fixture
def house(bench: Bench) -> tuple[Bench, Registry]:
    bench.runtime = registry = Registry()
    return bench, registry


def creation(bench: Bench, **more: Any) -> tuple[CreateKernels, KernelSpec]:
    spec = bench.spec(image=IMAGE, **{"auto_pull": "digest", "image_digest": "sha256:1", **more})
    return CreateKernels(kernels=[spec], registries=[ACCESS]), spec


async def test_the_image_is_fetched_first_and_no_password_is_kept(house: tuple[Bench, Registry]) -> None:
    bench, registry = house
    registry.gate.clear()
    agent = await bench.start()
    request, spec = creation(bench)
    await agent.commands.create_kernels(request)
    await bench.manager.wait_for(lambda o: o.status is S.PULLING)
    assert not registry.made
    registry.gate.set()
    await bench.manager.wait_for(lambda o: o.status is S.RUNNING)
    told = [o.status for o in bench.manager.observations if o.kernel_id == spec.kernel_id]
    assert told == [S.PREPARING, S.PULLING, S.CREATING, S.RUNNING]
    (pull,) = registry.pulls
    assert (pull.digest, pull.password) == ("sha256:1", SECRET)
    for path in bench.data_dir.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
    (created,) = registry.made
    assert SECRET not in repr(created)
    assert SECRET not in repr(request)


@pytest.mark.parametrize(
    ("problem", "status", "words"),
    [
        (RegistryUnavailable("it is down"), S.PENDING, "cannot be fetched now: it is down"),
        (StorageFull("the disk is full"), S.PENDING, "the disk is full"),
        (RegistryRefused("wrong password"), S.ERROR, "wrong password"),
        (ImageNotFound("no such tag"), S.ERROR, "no such tag"),
        (NotSupported("no registries here"), S.ERROR, "no registries here"),
    ],
)
async def test_why_it_cannot_be_fetched_is_told(
    house: tuple[Bench, Registry], problem: BackendError, status: KernelStatus, words: str
) -> None:
    bench, registry = house
    registry.problem = problem
    agent = await bench.start()
    request, _ = creation(bench)
    await agent.commands.create_kernels(request)
    ended = await bench.manager.wait_for(lambda o: o.status is status)
    assert words in str(ended.message)
    assert (ended.retry_after_s is not None) == (status is S.PENDING)
    assert not registry.made


async def test_an_image_that_vanishes_before_the_creation_is_no_end(house: tuple[Bench, Registry]) -> None:
    bench, registry = house
    registry.vanishes = True
    agent = await bench.start()
    request, _ = creation(bench)
    await agent.commands.create_kernels(request)
    assert (await bench.manager.wait_for(lambda o: o.status is S.PENDING)).retry_after_s == 0.0
    only_here, spec = creation(bench, auto_pull="")
    await agent.commands.create_kernels(only_here)
    ended = await bench.manager.wait_for(lambda o: o.kernel_id == spec.kernel_id and o.status is S.ERROR)
    assert ended.reason is R.CREATION_DENIED


async def test_a_session_can_be_ended_while_its_image_comes(house: tuple[Bench, Registry]) -> None:
    bench, registry = house
    registry.gate.clear()
    agent = await bench.start()
    request, spec = creation(bench)
    await agent.commands.create_kernels(request)
    await bench.manager.wait_for(lambda o: o.status is S.PULLING)
    await agent.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1))
    await bench.manager.wait_for(lambda o: o.status is S.TERMINATED)
    assert not registry.made


async def test_an_agent_that_comes_back_goes_on_fetching(house: tuple[Bench, Registry]) -> None:
    bench, registry = house
    registry.gate.clear()
    agent = await bench.start()
    request, spec = creation(bench)
    await agent.commands.create_kernels(request)
    await bench.manager.wait_for(lambda o: o.status is S.PULLING)
    await agent.stop()
    registry.problem = RegistryRefused("who are you?")  # the credentials were of the former life
    registry.gate.set()
    await bench.start()
    ended = await bench.manager.wait_for(lambda o: o.status is S.PENDING)
    assert (ended.kernel_id, "anew" in str(ended.message)) == (spec.kernel_id, True)
    assert [pull.password for pull in registry.pulls] == [SECRET, ""]


async def test_jobs_are_asked_after_until_they_are_done(house: tuple[Bench, Registry]) -> None:
    bench, registry = house
    registry.gate.clear()
    agent = await bench.start()
    pull = ImageJob(job_id="1", action="pull", image=IMAGE, access=ACCESS, wait_s=0.01)
    assert [(await agent.commands.image_job(pull)).state for _ in range(2)] == ["running", "running"]
    assert len(registry.pulls) == 1
    registry.gate.set()
    done = await agent.commands.image_job(replace(pull, wait_s=10))
    assert (done.state, done.total) == ("done", 2)
    assert (await agent.commands.image_job(pull)).state == "done"
    failed = await agent.commands.image_job(ImageJob(job_id="2", action="remove", image="busy:1", wait_s=10))
    assert (failed.state, failed.code, failed.message) == ("failed", "conflict", "in use")
    await agent.commands.image_job(ImageJob(job_id="3", action="remove", image=IMAGE, wait_s=10))
    assert registry.here == set()
    with pytest.raises(NotFound):
        await agent.commands.image_job(ImageJob(job_id="4", action="commit", kernel_id="none"))
    spec = await bench.run(agent)
    commit = ImageJob(job_id="5", action="commit", kernel_id=spec.kernel_id, folder="u", filename="f", wait_s=10)
    assert (await agent.commands.image_job(commit)).result["place"] == "/archives/u/f"


class OfCluster(Registry):
    """Nodes that pull by themselves within a creation, as those of a cluster do."""

    async def lacks_image(self, wanted: ImageRequest) -> bool:
        return False

    def info(self) -> RuntimeInfo:
        return replace(super().info(), pulls_in_create=True)


@pytest.fixture
def cluster(bench: Bench) -> tuple[Bench, OfCluster]:
    bench.runtime = registry = OfCluster()
    return bench, registry


def logins(registry: Registry) -> list[tuple[str, str]]:
    """Returns with which login each workload was to be made."""
    return [(request.username, request.password) if request is not None else ("", "") for request in registry.requests]


async def test_nodes_that_pull_by_themselves_get_the_login_of_the_day(cluster: tuple[Bench, OfCluster]) -> None:
    bench, registry = cluster
    agent = await bench.start()
    request, spec = creation(bench)
    await agent.commands.create_kernels(request)
    await bench.manager.wait_for(lambda o: o.status is S.RUNNING)
    rotated = RegistryAccess(registry="cr.test", username="u", password="the next one")
    again = RestartKernel(kernel_id=spec.kernel_id, attempt=2, registries=[rotated])
    await agent.commands.restart_kernel(again)
    await bench.manager.wait_for(lambda o: o.status is S.RUNNING and o.attempt == 2)
    assert logins(registry) == [("u", SECRET), ("u", "the next one")]
    assert "the next one" not in repr((again, registry.requests))
    for path in bench.data_dir.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
    local, other = creation(bench, auto_pull="")
    await agent.commands.create_kernels(local)
    await bench.manager.wait_for(lambda o: o.kernel_id == other.kernel_id and o.status is S.RUNNING)
    assert logins(registry)[2:] == [("", "")], "an image that nobody is to pull"


async def test_an_image_that_such_nodes_cannot_have_ends_the_session(cluster: tuple[Bench, OfCluster]) -> None:
    bench, registry = cluster
    registry.vanishes = True
    agent = await bench.start()
    request, spec = creation(bench)
    await agent.commands.create_kernels(request)
    ended = await bench.manager.wait_for(lambda o: o.kernel_id == spec.kernel_id and o.status in (S.ERROR, S.PENDING))
    assert (ended.status, ended.reason) == (S.ERROR, R.CREATION_DENIED), "it would be tried for ever"
