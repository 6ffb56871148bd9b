"""What hooks are told of the image of a workload."""

from __future__ import annotations

import pytest

from ai.backend.agent.lifecycle.hook_facts import image_of


@pytest.mark.parametrize(
    ("label", "libc"),
    [
        ("ubuntu22.04", "glibc"),
        ("debian12", "glibc"),
        ("alpine3.19", "musl"),
        ("Alpine3", "musl"),
        ("unknown", ""),
        ("", ""),
    ],
)
def test_the_libc_follows_from_the_distribution(label: str, libc: str) -> None:
    image = image_of("python", "aarch64", {"ai.backend.base-distro": label})
    assert (image.libc, image.architecture) == (libc, "aarch64")
    assert image.distribution == ("" if label == "unknown" else label)


def test_an_image_of_the_hosts_files_is_what_the_host_is() -> None:
    image = image_of("python", "x86_64", {"ai.backend.base-distro": "host"})
    assert image.distribution not in ("", "host")
    assert image.libc in ("glibc", "musl")
