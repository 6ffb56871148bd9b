"""A registry that asks for a login, from the manager to the kubelet: sessions run on its images, others get nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.kube.cluster import Cluster

from ai.backend.runtime.kubernetes.records import INSTANCE_LABEL
from tests.kubernetes.runtime.sites import NAMESPACE, PYTHON_IMAGE, Site
from tests.kubernetes.shard.conftest import prepared_site
from tests.kubernetes.shard.installation import Installation
from tests.support.docker_registry import NEXT_PASSWORD, PASSWORD, USER, DockerRegistry, running_registry
from tests.support.kube_volumes import provisioned

pytestmark = [pytest.mark.slow, pytest.mark.needs("kubernetes")]
CLUSTER = "registries"
REPOSITORY = "lab/python"
RUN = ("run", "-r", "cpu=1", "-r", "mem=128m", "-c", "print('pulled')")


@pytest.fixture
def site(cluster_to_break: Cluster, tmp_path: Path) -> Site:
    """The site of a cluster of the test's own: after an image was removed by one of its names, the node misses those
    that are imported with the same content."""
    images = tmp_path / "images"
    images.mkdir()
    return prepared_site(cluster_to_break, images)


@pytest.fixture
def registry(site: Site, tmp_path: Path) -> Iterator[DockerRegistry]:
    """A registry with the image of sessions twice, of which the node forgets what it has."""
    with running_registry(tmp_path / "registry", is_closed=True, address="0.0.0.0") as registry:
        hosts = site.cluster.registries_folder / host_of(site, registry) / "hosts.toml"
        hosts.parent.mkdir(parents=True)
        url = f"http://{host_of(site, registry)}"
        hosts.write_text(f'server = "{url}"\n[host."{url}"]\ncapabilities = ["pull", "resolve"]\n')
        for tag in ("1", "2"):
            name = image_of(site, registry, tag)
            site.cluster.ctr("images", "tag", PYTHON_IMAGE, name)
            site.cluster.ctr("images", "push", "--plain-http", "--user", f"{USER}:{PASSWORD}", name)
            site.cluster.ctr("images", "rm", name)
        yield registry


@pytest.fixture
def installation(site: Site, registry: DockerRegistry, tmp_path: Path) -> Iterator[Installation]:
    """An installation of its own, whose nodes pull."""
    root = tmp_path / "installation"
    root.mkdir()
    installation = Installation(root, site, CLUSTER, pull_policy="if-not-present")
    with provisioned(site.cluster, NAMESPACE):
        try:
            installation.start()
            installation.start_shard("shard")
            is_alive = "SELECT count(*) FROM agents WHERE status = 'ALIVE'"
            installation.until(lambda: installation.rows(is_alive) == [(1,)], "the agent of the node")
            installation.register_images(
                *(image_of(site, registry, tag) for tag in "12"),
                labels={"ai.backend.runtime-path": "/usr/bin/python3"},
                registry=host_of(site, registry),
            )
            yield installation
        finally:
            installation.stop()


def host_of(site: Site, registry: DockerRegistry) -> str:
    """Returns the registry's name as nodes and the manager have it."""
    return f"{site.cluster.host_address}:{registry.port}"


def image_of(site: Site, registry: DockerRegistry, tag: str) -> str:
    return f"{host_of(site, registry)}/{REPOSITORY}:{tag}"


def set_login(installation: Installation, host: str, username: str, password: str) -> None:
    values = {"": f"http://{host}", "type": "docker", "username": username, "password": password}
    key = f"config/docker/registry/{host.replace(':', '%3A')}"
    installation.run("admin", "etcd", "set", key, json.dumps(values), who="admin")


def secrets(cluster: Cluster) -> list[str]:
    """Returns the names of the Secrets of this installation's pods."""
    selector = f"labelSelector={INSTANCE_LABEL}%3D{CLUSTER}"
    listed = cluster.request("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets?{selector}")
    return [item["metadata"]["name"] for item in listed["items"]]


def pods(site: Site) -> list[str]:
    """Returns the names of the pods of this installation's sessions."""
    mine = {INSTANCE_LABEL: CLUSTER}.items()
    return [pod["metadata"]["name"] for pod in site.pods() if mine <= pod["metadata"]["labels"].items()]


@pytest.mark.timeout(600)
def test_sessions_run_on_images_of_a_registry_that_asks_for_a_password(
    installation: Installation, registry: DockerRegistry, site: Site
) -> None:
    cluster, host = site.cluster, host_of(site, registry)
    set_login(installation, host, USER, "not-this-one")
    said = installation.fail(*RUN, image_of(site, registry, "1"), who="user")
    assert "ErrImagePull" in said, f"the kubelet's words: {said}"
    assert "not-this-one" not in said
    cluster.wait_for(lambda: not pods(site) and not secrets(cluster), "the end of the pod and its Secret")

    set_login(installation, host, USER, PASSWORD)
    assert "pulled" in installation.run(*RUN, "--name", "first", image_of(site, registry, "1"), who="user")
    assert secrets(cluster) == pods(site), "a Secret of its own"
    shard = f"system:serviceaccount:{installation.namespace}:{installation.release}-shard"
    verbs = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
    assert [verb for verb in verbs if may(cluster, shard, verb)] == ["create"]

    registry.rotate()
    set_login(installation, host, USER, NEXT_PASSWORD)
    assert "pulled" in installation.run(*RUN, "--name", "second", image_of(site, registry, "2"), who="user")
    installation.run("session", "restart", "first", who="user")
    again = ("run", "--name", "first", "-c", "print('pulled')", image_of(site, registry, "1"))
    assert "pulled" in installation.run(*again, who="user")
    assert sorted(secrets(cluster)) == sorted(pods(site)), "the restarted one has the Secret of its new pod"

    for name in ("first", "second"):
        installation.run("rm", name, who="user")
    cluster.wait_for(lambda: not pods(site) and not secrets(cluster), "the end of the pods and their Secrets")
    set_login(installation, host, "", "")
    said = installation.fail(*RUN, image_of(site, registry, "1"), who="user")
    assert "ErrImagePull" in said, f"the image is on the node, and not for those without the credentials: {said}"
    cluster.wait_for(lambda: not pods(site), "the end of the pod")


def may(cluster: Cluster, user: str, verb: str) -> bool:
    """Returns True if a user may do this with secrets in the namespace of sessions."""
    attributes = {"namespace": NAMESPACE, "verb": verb, "resource": "secrets"}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
    review = {**body, "spec": {"user": user, "resourceAttributes": attributes}}
    answer = cluster.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])
