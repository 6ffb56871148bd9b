"""What the published client must be able to do with templates, dotfiles and presets; see :mod:`checks`."""

from __future__ import annotations

import json
import re
import subprocess

from tests.conformance.checks import Scene, ended, until

TEMPLATE = """
---
api_version: v1
kind: taskTemplate
metadata:
  name: conf-template
  tag: from-a-template
spec:
  kernel:
    image: python
    environ:
      CONF_TEMPLATE: chosen
  resources:
    cpu: '1'
    mem: 128m
"""
_CHECK_PRESETS = """
import json
from ai.backend.client.session import Session
with Session() as session:
    print(json.dumps([session.Resource.check_presets(), session.Resource.list()]))
"""


def _keep(scene: Scene) -> str:
    path = scene.client.folder / "template.yaml"
    path.write_text(TEMPLATE)
    said = ended(scene.client("sesstpl", "create", "-f", str(path), "-d", "default", "-g", "default"))
    found = re.search(r"Task template ([0-9a-f-]{36}) created", said.all)
    assert found is not None, said.all
    return found[1]


def _drop(scene: Scene, template: str) -> None:
    ended(scene.client("sesstpl", "delete", template, input_="y\n"))


def check_sesstpl(scene: Scene) -> None:
    template = _keep(scene)
    try:
        listed = ended(scene.client("sesstpl", "list"))
        [row] = [line for line in listed.out.splitlines() if template in line]
        assert "conf-template" in row, listed.all
        assert "True" in row, listed.all
        said = ended(scene.client("sesstpl", "get", template, "-f", "json"))
        assert json.loads(said.out)["spec"]["kernel"]["environ"] == {"CONF_TEMPLATE": "chosen"}, said.all
        assert "CONF_TEMPLATE: chosen" in ended(scene.client("sesstpl", "get", template)).out
        path = scene.client.folder / "changed.yaml"
        path.write_text(TEMPLATE.replace("conf-template", "conf-changed"))
        ended(scene.client("sesstpl", "update", template, "-f", str(path)))
        assert "conf-changed" in ended(scene.client("sesstpl", "list")).out
        path.write_text(TEMPLATE.replace("image:", "imagine:"))
        refused = ended(scene.client("sesstpl", "update", template, "-f", str(path)))
        assert "imagine" in refused.all, refused.all
    finally:
        _drop(scene, template)
    assert template not in ended(scene.client("sesstpl", "list")).out


def check_create_from_template(scene: Scene) -> None:
    template = _keep(scene)
    try:
        command = ("session", "create-from-template", "-t", "conf-tpl", "--no-mount", "-d", "default", "-g", "default")
        said = ended(scene.client(*command, template))
        assert "is created and ready" in said.all, said.all
        until(lambda: scene.living().get("conf-tpl", {}).get("status") == "RUNNING", "the session runs")
        detail = scene.server.ComputeSession("conf-tpl").detail(["tag", "occupying_slots"])
        assert detail is not None
        assert detail["tag"] == "from-a-template"
        assert json.loads(detail["occupying_slots"])["mem"] == str(128 * 1024**2)
        code = "import os; print(os.environ['CONF_TEMPLATE'])"
        ran = ended(scene.client("run", "-t", "conf-tpl", "-c", code, "python"))
        assert "chosen" in ran.out, ran.all
    finally:
        scene.remove("conf-tpl")
        _drop(scene, template)


def check_dotfile(scene: Scene) -> None:
    path = scene.client.folder / "dotfile"
    path.write_text("one = 1")
    try:
        said = ended(scene.client("dotfile", "create", ".conf/tool", "-f", str(path), "--perm", "640"))
        assert "created and ready" in said.all, said.all
        path.write_text("two = 2")
        ended(scene.client("dotfile", "update", ".conf/tool", "-f", str(path), "--perm", "600"))
        assert ended(scene.client("dotfile", "get", ".conf/tool")).out.strip() == "two = 2"
        listed = ended(scene.client("dotfile", "list"))
        [row] = [line for line in listed.out.splitlines() if ".conf/tool" in line]
        assert "600" in row, listed.all
        with scene.session("conf-dot") as session:
            code = "import os; print(open('.conf/tool').read(), oct(os.stat('.conf/tool').st_mode & 0o777))"
            done = session.execute(code=code)
            assert ["stdout", "two = 2 0o600\n"] in done["console"], done
        refused = ended(scene.client("dotfile", "create", "../.escape", "-f", str(path)))
        assert "400" in refused.all, refused.all
    finally:
        ended(scene.client("dotfile", "delete", ".conf/tool", input_="y\n"))
    assert ".conf/tool" not in ended(scene.client("dotfile", "list")).all


def check_check_presets(scene: Scene) -> None:
    with scene.session("conf-presets"):
        done = subprocess.run(
            [scene.client.python, "-c", _CHECK_PRESETS],
            env=scene.client.environment(),
            cwd=scene.client.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        checked, listed = json.loads(done.stdout)
    assert listed["presets"] is not None
    for name in ("keypair", "group", "domain"):
        for what in ("limits", "using", "remaining"):
            assert "cpu" in checked[f"{name}_{what}"], (name, what, checked)
    assert checked["keypair_using"]["cpu"] == "1", checked
    assert checked["keypair_remaining"]["cpu"] == "Infinity", checked
    for scope in checked["scaling_groups"].values():
        assert set(scope) == {"using", "remaining"}, checked
    assert "cpu" in checked["scaling_group_remaining"], checked
    assert all(isinstance(preset["allocatable"], bool) for preset in checked["presets"]), checked
