"""Homes that are claims: made once, kept for the next attempt, removed with the kernel or the failed creation."""

from __future__ import annotations

from typing import Any, cast
from uuid import uuid4

import pytest

from ai.backend.common.errors import CreationDeferred, CreationDenied
from ai.backend.common.ids import KernelId, SessionId
from ai.backend.common.structs import replace
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.errors import NamespaceQuotaExceeded, ObjectExists, RequestDenied
from ai.backend.node.kube_api.objects import KubeObject, ObjectMeta
from ai.backend.plugin.runtime import WorkloadKey, WorkloadSpec
from ai.backend.runtime.kubernetes import homes
from ai.backend.runtime.kubernetes.homes import Homes, home_name
from ai.backend.runtime.kubernetes.settings import KubernetesRuntimeSettings

SETTINGS = KubernetesRuntimeSettings(
    runner_image="r", relay_target="t:1", home_volume="claim", home_storage_class="fast", home_bytes=5 << 30
)
KEY = WorkloadKey(kernel_id=KernelId(uuid4()), attempt=1)
SPEC = WorkloadSpec(key=KEY, session_id=SessionId(uuid4()), image="i")
NAME = home_name(KEY.kernel_id, "n")


class Claims:
    """The claims of a namespace; ``refusals`` are the next answers to creations."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.refusals: list[Exception] = []
        self.going = 0

    async def create(self, _resource: Any, manifest: dict[str, Any], _namespace: str) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        name = manifest["metadata"]["name"]
        if name in self.objects:
            raise ObjectExists("exists")
        self.objects[name] = manifest

    async def find(self, _resource: Any, name: str, _namespace: str) -> KubeObject | None:
        manifest = self.objects.get(name)
        if manifest is None:
            return None
        deleted = "2026-01-01T00:00:00Z" if self.going else ""
        if self.going:
            self.going -= 1
            if not self.going:
                del self.objects[name]
        annotations = manifest["metadata"]["annotations"]
        return KubeObject(metadata=ObjectMeta(name=name, uid="u", annotations=annotations, deletion_timestamp=deleted))

    async def delete(self, _resource: Any, name: str, _namespace: str, *, uid: str) -> bool:
        assert uid == "u"
        return self.objects.pop(name, None) is not None


@pytest.fixture
def claims() -> Claims:
    return Claims()


@pytest.fixture
def kept(claims: Claims) -> Homes:
    return Homes(cast("KubeApi", claims), SETTINGS, "n")


async def test_a_home_has_its_class_and_size_and_serves_the_next_attempt(claims: Claims, kept: Homes) -> None:
    await kept.ensure(SPEC)
    (claim,) = claims.objects.values()
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["resources"]["requests"]["storage"] == str(5 << 30)
    assert claim["metadata"]["annotations"]["backend.ai/node"] == "n"
    await kept.ensure(replace(SPEC, key=replace(KEY, attempt=2)))
    assert list(claims.objects) == [NAME]


async def test_only_the_attempt_that_made_it_takes_it_along_when_it_fails(claims: Claims, kept: Homes) -> None:
    await kept.ensure(SPEC)
    await kept.undo(replace(SPEC, key=replace(KEY, attempt=2)))
    assert NAME in claims.objects, "a restart that fails loses nothing"
    await kept.undo(SPEC)
    assert not claims.objects


async def test_an_attempt_that_wants_no_old_home_gets_a_new_one(claims: Claims, kept: Homes) -> None:
    await kept.ensure(SPEC)
    await kept.ensure(replace(SPEC, key=replace(KEY, attempt=2), keep_home=False))
    assert claims.objects[NAME]["metadata"]["annotations"]["backend.ai/attempt"] == "2"
    await kept.ensure(replace(SPEC, key=replace(KEY, attempt=2), keep_home=False))
    assert NAME in claims.objects, "its repetition takes what it has made"


async def test_a_home_that_is_going_away_is_waited_for(
    claims: Claims, kept: Homes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(homes, "HOME_DELETION_CHECK_S", 0.0)
    await kept.ensure(SPEC)
    claims.going = 3
    await kept.ensure(replace(SPEC, key=replace(KEY, attempt=2)))
    assert claims.objects[NAME]["metadata"]["annotations"]["backend.ai/attempt"] == "2"
    claims.going = 10**6
    monkeypatch.setattr(homes, "HOME_DELETION_TIMEOUT_S", 0.0)
    with pytest.raises(CreationDeferred, match="does not go away"):
        await kept.ensure(replace(SPEC, key=replace(KEY, attempt=3)))


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (NamespaceQuotaExceeded("exceeded quota: homes"), CreationDeferred),
        (RequestDenied("cannot create persistentvolumeclaims"), CreationDenied),
    ],
)
async def test_refusals_are_told_in_the_words_of_the_cluster(
    claims: Claims, kept: Homes, refusal: Exception, error: type[Exception]
) -> None:
    claims.refusals = [refusal]
    with pytest.raises(error, match=str(refusal)):
        await kept.ensure(SPEC)


async def test_without_the_setting_nothing_is_asked_of_the_cluster() -> None:
    settings = SETTINGS.model_copy(update={"home_volume": "empty-dir"})
    none = Homes(cast("KubeApi", None), settings, "n")
    await none.ensure(SPEC)
    await none.undo(SPEC)
    await none.remove(KEY.kernel_id)
