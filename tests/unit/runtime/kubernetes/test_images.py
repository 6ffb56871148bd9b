"""The images of a node, as a kubelet reports them."""

import msgspec
import pytest

from ai.backend.runtime.kubernetes.images import images_of


def node(*images: dict[str, object]) -> bytes:
    return msgspec.json.encode({"status": {"nodeInfo": {"architecture": "amd64"}, "images": list(images)}})


def test_an_image_has_its_first_tag_and_its_digest() -> None:
    names = ["registry/a@sha256:1", "registry/a:1", "registry/a:latest"]
    [image] = images_of(node({"names": names, "sizeBytes": 7}))
    assert (image.name, image.aliases, image.digest) == ("registry/a:1", ("registry/a:latest",), "sha256:1")
    assert (image.architecture, image.size_bytes) == ("x86_64", 7)


def test_an_image_that_lost_its_names_is_none() -> None:
    assert images_of(node({"names": None, "sizeBytes": 7}, {"sizeBytes": 7}, {"names": ["a@sha256:1"]})) == []


@pytest.mark.parametrize("body", [b"{}", b'{"status": {}}', b'{"status": {"images": null}}'])
def test_a_node_without_images(body: bytes) -> None:
    assert images_of(body) == []
