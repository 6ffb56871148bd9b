"""A session that one node puts off starts on another, and the plugin's hooks there are told so."""

from __future__ import annotations

from pathlib import Path

from tests.support.cluster import running_cluster, wait_until

ROOT = Path(__file__).parents[2]
CONFIG = """
[agent]
allow-compute-plugins = ["tests.support.neighbours:Neighbour"]
[plugins.bad]
journal = "{journal}"
while_file = "{fault}"
faults = {{ pre_create = "defer-never" }}
"""


def test_the_hook_of_the_second_node_has_the_cause_relocate(tmp_path: Path) -> None:
    configs, fault = tmp_path / "agents", tmp_path / "fault"
    configs.mkdir()
    fault.touch()
    journals = {name: tmp_path / f"{name}.journal" for name in ("i-local", "i-local-2")}
    for name, journal in journals.items():
        (configs / f"{name}.toml").write_text(CONFIG.format(journal=journal, fault=fault))

    def causes(name: str) -> list[str]:
        lines = journals[name].read_text().splitlines() if journals[name].exists() else []
        return [line.split()[2] for line in lines if line.startswith("pre_create ")]

    options = ("--agents", "2", "--agent-config", str(configs))
    with running_cluster(tmp_path / "data", *options, env={"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}) as cluster:

        def offering() -> int:
            agents = cluster.json("admin", "agent", "list", admin=True)["items"]
            return sum("bad.device" in agent["available_slots"] for agent in agents)

        wait_until(lambda: offering() == len(journals), what="the plugins in their host processes")
        slots = ("-r", "cpu=1", "-r", "mem=256m", "-r", "bad.device=1")
        cluster.run("start", "-q", "-t", "moves", "--enqueue-only", *slots, "python", check=True)
        wait_until(lambda: any(map(causes, journals)), what="the first node to put the session off")
        (first,) = (name for name in journals if causes(name))
        assert causes(first)[0] == "create"
        fault.unlink()
        wait_until(lambda: cluster.json("info", "moves")["status"] == "RUNNING", what="the session to run")
        agent = cluster.json("info", "moves", admin=True)["containers"][0]["agent"]
        (second,) = journals.keys() - {first}
        assert agent == second, "a node that has just failed the session comes last"
        assert causes(second)[-1] == "relocate"
        assert cluster.run("run", "-q", "-t", "moves", "-c", "print(6 * 7)", "python", check=True).stdout == "42\n"
        assert "terminated" in cluster.run("rm", "moves", check=True).stdout
