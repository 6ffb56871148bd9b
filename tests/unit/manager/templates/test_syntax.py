"""Templates are read in every spelling, and refused with the path of the wrong field."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ai.backend.common.errors import InvalidInput
from ai.backend.common.states import ClusterMode
from ai.backend.manager.templates.documents import read_documents
from ai.backend.manager.templates.syntax import ClusterTemplate, SessionTemplate, read_template

ID = "01234567-89ab-cdef-0123-456789abcdef"


def session(spec: dict[str, Any] | None = None, **kernel: Any) -> dict[str, Any]:
    return {
        "api_version": "v1",
        "kind": "taskTemplate",
        "metadata": {"name": "sample", "tag": ""},
        "spec": {"kernel": {"image": "python", **kernel}, **(spec or {})},
    }


def cluster(*nodes: dict[str, Any], **more: Any) -> dict[str, Any]:
    head = {"apiVersion": "v1", "kind": "cluster_template", "metadata": {"name": "several"}}
    return {**head, "spec": {"nodes": list(nodes)}, **more}


def test_empty_fields_count_as_absent() -> None:
    template = read_template(
        session({"mounts": "", "sessionType": ""}, git="", run="", environ="", architecture=""), SessionTemplate
    )
    assert template == read_template(session(), SessionTemplate)
    assert (template.metadata.tag, template.spec.type, template.spec.kernel.bootstrap_script) == (
        None,
        "interactive",
        None,
    )


@pytest.mark.parametrize("name", ["startup", "stratup", "startup_command", "startupCommand"])
def test_every_spelling(name: str) -> None:
    document = session({"session_type": "batch", "resourceOpts": {"shmem": "1g"}}, run={name: "./main"})
    spec = read_template(document, SessionTemplate).spec
    assert (spec.type, spec.resource_opts, spec.kernel.run.startup) == ("batch", {"shmem": "1g"}, "./main")


def test_keys_of_the_author_are_not_respelled() -> None:
    spec = read_template(
        session({"mounts": ["data", "sessionType"]}, environ={"apiVersion": "", "A": "1"}), SessionTemplate
    ).spec
    assert spec.mounts == {"data": "", "sessionType": ""}
    assert spec.kernel.environ == {"apiVersion": "", "A": "1"}


def test_a_clone_has_its_place() -> None:
    git = {"repository": "https://example.com/lab/agent.git", "credential": {"username": "me", "password": "it's"}}
    source = read_template(session(git=git), SessionTemplate).spec.kernel.git
    assert source is not None
    assert source.destination == "/home/work/agent"


def test_the_main_node_comes_first() -> None:
    worker, main = {"role": "worker", "sessionTemplate": ID, "replicas": "3"}, {"role": "main", "session_template": ID}
    template = read_template(cluster(worker, main, mode="multi-node"), ClusterTemplate)
    assert [(node.role, node.replicas, node.session_template) for node in template.nodes] == [
        ("main", 1, UUID(ID)),
        ("worker", 3, UUID(ID)),
    ]
    assert template.mode is ClusterMode.MULTI_NODE


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (session({"colour": "red"}), "spec: Object contains unknown field `colour`"),
        (session(image=""), "spec.kernel: Object missing required field `image`"),
        (session(image=["x"]), "spec.kernel.image: Expected `str`"),
        (session(image="a\0b"), "spec.kernel.image: Expected `str` matching"),
        (session({"type": "system"}), "spec.type: Expected one of interactive, batch"),
        (session({"type": "batch", "sessionType": "batch"}), "spec.type: is given twice"),
        (session({"resources": {"cpu": ["2"]}}), "spec.resources[...]: Expected `str`"),
        (session({"mounts": "data"}), "spec.mounts: Expected `object`"),
        (session(environ={"A": "x" * 65_537}), "spec.kernel.environ[...]: Expected a text of at most 65536 characters"),
        (session(git={"repository": "ext::sh -c id"}), "spec.kernel.git: `repository`"),
        (session(git={"repository": "http://[::1"}), "spec.kernel.git: "),
        (session(git={"repository": "https://a/b", "commit": "-x"}), "spec.kernel.git: `commit`"),
        (session(git={"repository": "https://a/b", "destinationDir": "../x"}), "spec.kernel.git: `destination_dir`"),
        ({**session(), "metadata": {"name": "x" * 129}}, "metadata.name: Expected a text of at most 128 characters"),
        ({**session(), "kind": "clusterTemplate"}, "kind: Expected one of taskTemplate, task_template"),
    ],
)
def test_what_is_refused_is_named_with_its_place(document: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_template(document, SessionTemplate)
    assert caught.value.data["payload"].startswith(problem)


@pytest.mark.parametrize(
    ("nodes", "problem"),
    [
        ([], "spec: `nodes` must name"),
        ([{"role": "worker", "session_template": ID}], "spec: `nodes` must name"),
        ([{"role": "main", "session_template": ID}] * 2, "spec: `nodes` must name"),
        ([{"role": "main", "session_template": ID, "replicas": "2"}], "spec: `nodes` must name"),
        ([{"role": "main", "session_template": ID, "replicas": "0"}], "spec.nodes[0].replicas: Expected `int` >= 1"),
        ([{"role": "main", "session_template": ID, "replicas": "many"}], "spec.nodes[0].replicas: Expected `int`"),
        ([{"role": "master", "session_template": ID}], "spec.nodes[0].role: Expected `str` matching"),
        ([{"role": "main\n", "session_template": ID}], "spec.nodes[0].role: Expected `str` matching"),
        ([{"role": "main", "session_template": "mine"}], "spec.nodes[0].session_template: "),
        (["main"], "spec.nodes[0]: Expected `object`"),
    ],
)
def test_roles_that_are_refused(nodes: list[Any], problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_template(cluster(*nodes), ClusterTemplate)
    assert caught.value.data["payload"].startswith(problem)


def test_the_example_of_the_guide_is_valid() -> None:
    guide = Path(__file__).parents[4] / "docs" / "howto" / "run-clusters.md"
    [example] = re.findall(r"```yaml\n(.*?)```", guide.read_text(), re.DOTALL)
    [document] = read_documents(example)
    spec = read_template(document, SessionTemplate).spec
    assert (spec.cluster_size, spec.priority, spec.preopen_ports, spec.batch_timeout) == (2, 7, [8080], "30m")
    assert spec.mount_options["data"].permission == "ro"
