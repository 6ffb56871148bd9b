"""Endpoints in the form of the REST API: what a reply tells, and what a change clears."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ai.backend.common.structs import replace
from ai.backend.manager.serving.requests import RevisionRequest
from ai.backend.manager.serving.revisions import changed_request
from ai.backend.manager.serving.schemas import ModifyServiceBody
from ai.backend.manager.serving.views import modification_of, service_reply
from tests.unit.manager.serving.world import make_service, make_spec

FULL = make_spec(
    "serve --fast",
    startup_command="serve --fast",
    architecture="x86_64",
    model_version="3",
    model_definition_path="other.yaml",
    model_name="tiny",
    model_mount_destination="/data",
    runtime_variant="vllm",
    environ={"SHOWN": "1"},
    sealed_environ={"API_KEY": "sealed-0815"},
    resources={"cpu": "2"},
    resource_opts={"shmem": "64m"},
    tag="mine",
    bootstrap_script="true",
    variant_requirements=("nvidia::compute_capability::8.0",),
    device_requests=('model == "H100"',),
)


def body_of(document: str) -> ModifyServiceBody:
    return msgspec.json.decode(document, type=ModifyServiceBody)


def test_what_is_absent_stays() -> None:
    request = modification_of(body_of('{"environ": {"A": "b"}, "desired_session_count": 3}'))
    assert (request.replicas, request.name, request.policy, request.open_to_public) == (3, None, None, None)
    assert request.revision == {"environ": {"A": "b"}}
    changed = changed_request(FULL, request.revision)
    assert (changed.environ, changed.sealed_environ, changed.tag) == ({"A": "b"}, FULL.sealed_environ, "mine")


@pytest.mark.parametrize(
    "field",
    [
        *("architecture", "model_version", "model_definition_path", "model_name", "model_mount_destination"),
        *("runtime_variant", "environ", "resources", "resource_opts", "tag", "startup_command", "bootstrap_script"),
        *("port", "variant_requirements", "device_requests"),
    ],
)
def test_null_clears_a_field(field: str) -> None:
    changed = changed_request(FULL, modification_of(body_of(f'{{"{field}": null}}')).revision)
    plain = RevisionRequest(image="python", model="folder")
    assert getattr(changed, field) == getattr(plain, field)
    changes: dict[str, Any] = {field: getattr(plain, field)}
    if field == "environ":
        changes["sealed_environ"] = {}
    assert changed == replace(changed_request(FULL, {}), **changes)


@pytest.mark.parametrize("field", ["name", "image", "model", "policy", "desired_session_count", "open_to_public"])
def test_null_is_refused_where_there_is_always_a_value(field: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=field):
        body_of(f'{{"{field}": null}}')


def test_a_reply_tells_what_replicas_are_made_of_but_no_secret() -> None:
    service = make_service()
    service = replace(service, revisions=(replace(service.revisions[0], spec=FULL),))
    reply = service_reply(service)
    assert (reply.startup_command, reply.environ, reply.resources) == ("serve --fast", {"SHOWN": "1"}, {"cpu": "2"})
    assert (reply.resource_opts, reply.port, reply.tag) == ({"shmem": "64m"}, 8000, "mine")
    assert (reply.served_model, reply.secret_names) == ("tiny", ["API_KEY"])
    assert b"sealed-0815" not in msgspec.json.encode(reply)
