"""kubectl accelerators as kubectl finds it, on a real API server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.kubernetes.kubeacc.conftest import NODE, Bench

pytestmark = pytest.mark.needs("kubernetes")


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    """A folder with the entry point, as an installation has it."""
    script = tmp_path / "kubectl-accelerators"
    script.write_text(f"#!{sys.executable}\nfrom ai.backend.kubeacc.kubectl.main import main\nmain()\n")
    script.chmod(0o755)
    return tmp_path


async def call(bench: Bench, plugins: Path, *arguments: str, user: str = "") -> tuple[int, str]:
    kubeconfig = await asyncio.to_thread(bench.cluster.user, user) if user else bench.cluster.kubeconfig
    process = await asyncio.create_subprocess_exec(
        *(str(bench.cluster.program("kubectl")), "accelerators", *arguments),
        env={**os.environ, "PATH": f"{plugins}:{os.environ['PATH']}", "KUBECONFIG": str(kubeconfig), "COLUMNS": "200"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


async def test_devices_are_listed_operated_and_described(bench: Bench, device: str, plugins: Path) -> None:
    code, text = await call(bench, plugins, "list", "--node", NODE, "--type", "fpga")
    assert (code, device in text, "Mock 7" in text) == (0, True, True)
    code, text = await call(bench, plugins, "-n", bench.namespace, "operate", "power", device, "--power", "off")
    assert (code, "Succeeded" in text) == (0, True), text
    code, text = await call(bench, plugins, "describe", device)
    assert re.search(r"Power\s+Off", text)
    assert f"{bench.namespace}/power-" in text
    code, text = await call(bench, plugins, "-o", "json", "list")
    assert device in {obj["metadata"]["name"] for obj in json.loads(text)}
    code, text = await call(bench, plugins, "tree")
    assert f"node {NODE}" in text
    use = {"measuredAt": "2026-01-01T00:00:00Z", "utilizationPercent": "42.5", "powerWatts": "71"}
    await bench.show(device, usage=use)
    code, text = await call(bench, plugins, "top")
    (line,) = [line for line in text.splitlines() if line.startswith(device)]
    assert (code, {"42.5", "71"} <= set(line.split())) == (0, True), text


async def test_what_is_refused_is_one_line_or_its_exit_code(bench: Bench, device: str, plugins: Path) -> None:
    code, text = await call(bench, plugins, "describe", "no-such-device")
    assert (code, text.count("\n"), "not found" in text) == (1, 1, True)
    code, text = await call(bench, plugins, "list", user="stranger")
    assert (code, text.count("\n"), "cannot list" in text) == (1, 1, True)
    operation = ("operate", "reset", "no-such-device")
    code, text = await call(bench, plugins, "-n", bench.namespace, *operation)
    assert (code, "NoSuchAccelerator" in text) == (3, True)
    code, text = await call(bench, plugins, "operate", "program", device)
    assert (code, "needs --image" in text) == (2, True)
