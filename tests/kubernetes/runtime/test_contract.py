"""The Kubernetes runtime keeps the contract on a real kubelet and containerd, in a namespace of restricted pods."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tools.kube.daemon import SLOWNESS

from ai.backend.plugin.runtime import AbstractRuntime
from ai.backend.plugin.testing.runtime.contract import RuntimeContract
from ai.backend.runtime.kubernetes import runtime as kubernetes_runtime
from tests.kubernetes.runtime.sites import PYTHON_IMAGE, Site


@pytest.mark.needs("kubernetes")
class TestKubernetes(RuntimeContract):
    image = PYTHON_IMAGE
    patience_s: ClassVar[float] = 60.0 * SLOWNESS
    settings: ClassVar[dict[str, Any]] = {}

    @pytest.fixture
    async def runtime(self, tmp_path: Path, session_site: Site) -> AsyncIterator[AbstractRuntime]:
        self.site = session_site
        self.opened = [session_site.open(tmp_path, **self.settings)]
        runtime = self.opened[0].runtime
        await runtime.setup()
        yield runtime
        await runtime.shutdown()
        for opened in self.opened:
            await opened.api.close()
        session_site.require_nothing_left()

    async def reopen(self, runtime: AbstractRuntime | None) -> AbstractRuntime:
        self.opened.append(self.opened[0].again())
        again = self.opened[-1].runtime
        await again.setup()
        return again

    @pytest.fixture(autouse=True)
    def images_read_anew(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A list that was read before the kubelet's first report would be kept for longer than a test waits."""
        monkeypatch.setattr(kubernetes_runtime, "IMAGES_FRESH_S", 0.0)

    async def test_it_lists_the_image_of_the_suite(self, runtime: AbstractRuntime) -> None:
        """Overrides the contract's: a kubelet reports a new image within a minute, and the 50 largest only."""

        async def is_listed() -> bool:
            return self.image in {
                name for image in await runtime.list_images() for name in (image.name, *image.aliases)
            }

        assert await self.eventually(is_listed)

    async def test_files_outside_of_the_home_are_there_and_closed(self, runtime: AbstractRuntime) -> None:
        files = {"/home/config/resource.txt": b"CPU=1", "/home/config/ssh/id": b"key"}
        talk = await self.start(runtime, self.spec(files=files, private_files=frozenset({"/home/config/ssh/id"})))
        code = "import os; print(open('/home/config/resource.txt').read(), open('/home/config/ssh/id').read())\n"
        await talk.run(code + "open('/home/config/resource.txt', 'w')")
        assert talk.text() == "CPU=1 key\n"
        assert "Read-only file system" in talk.text(stream="stderr")

    async def test_the_tier_says_that_networks_are_not_enforced_here(self, runtime: AbstractRuntime) -> None:
        assert runtime.info().tier == "pod"
