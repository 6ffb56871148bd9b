"""`backend.ai reload` takes over plugins and their settings in a cluster that runs; sessions notice nothing."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.cluster import running_cluster, wait_until

SMALL = ("-r", "cpu=1", "-r", "mem=256m")
SETTINGS = "[agent]\nallow-compute-plugins = [{plugins}]\n[plugins.mock]\n{mock}\n"
MOCK, ISOLATED = '"ai.backend.accelerator.mock"', '"ai.backend.accelerator.mock.isolated"'


@pytest.mark.parametrize(("options", "plugins"), [((), MOCK), (("--separate",), ISOLATED)])
def test_changed_settings_are_taken_over(tmp_path: Path, options: tuple[str, ...], plugins: str) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(SETTINGS.format(plugins=plugins, mock="default-devices = 1"))
    with running_cluster(tmp_path / "data", "--agents", "2", "--agent-config", str(file), *options) as cluster:

        def amounts() -> list[str]:
            agents = cluster.json("admin", "agent", "list", admin=True)["items"]
            return [str(agent["available_slots"].get("mock.device")) for agent in agents]

        def reload() -> tuple[int, str]:
            done = cluster.run("reload", "--data-dir", str(cluster.data_dir))
            return done.returncode, done.stdout + done.stderr

        wait_until(lambda: amounts() == ["1", "1"], what="the first settings")
        cluster.run("start", "-q", "-t", "held", *SMALL, "-r", "mock.device=1", "python", check=True)
        file.write_text(SETTINGS.format(plugins=plugins, mock="default-devices = 3"))
        taken = "i-local: plugins and their settings are taken over.\n"
        assert reload() == (0, taken + taken.replace("i-local", "i-local-2"))
        wait_until(lambda: amounts() == ["3", "3"], what="the new settings")
        assert cluster.run("run", "-q", "-t", "held", "-c", "print(6 * 7)", "python", check=True).stdout == "42\n"

        file.write_text(SETTINGS.format(plugins=plugins, mock="default-device = 5"))
        code, text = reload()
        assert (code, text.count("mock.default-device: there is no such key")) == (1, 2), text
        file.write_text("[agent")
        code, text = reload()
        assert (code, text.count("is not TOML")) == (1, 2), text
        assert amounts() == ["3", "3"]
        assert "terminated" in cluster.run("rm", "held", check=True).stdout


def test_a_cluster_that_does_not_run_is_not_reloaded(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "data") as cluster:
        assert cluster.process is not None
        cluster.process.send_signal(signal.SIGHUP)  # no terminal has ended: it reloads, and goes on
        done = cluster.run("reload", "--data-dir", str(cluster.data_dir))
        assert (done.returncode, done.stdout) == (0, "i-local: plugins and their settings are taken over.\n")
    done = cluster.run("reload", "--data-dir", str(cluster.data_dir))
    assert (done.returncode, done.stderr) == (1, f"backend.ai: No cluster runs on {cluster.data_dir}.\n")
