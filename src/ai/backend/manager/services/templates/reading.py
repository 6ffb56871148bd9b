"""What templates say (spec 03-11, "Full syntax for task template"; roles of clusters: spec 03-09). Pure.

Whatever is not known is refused with its place, so that a misspelt field is noticed when the template is uploaded.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from ai.backend.common.errors import InvalidInput
from ai.backend.common.ids import TemplateId
from ai.backend.common.states import ClusterMode, SessionType

_HOME = "/home/work"
_ROLE = re.compile(r"[a-z][a-z0-9]{0,14}")
_MAX_REPLICAS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class GitSource:
    """A repository that is cloned when the session starts. ``destination`` is below the home directory."""

    repository: str
    branch: str = ""
    commit: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    destination: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTemplate:
    """A task template. ``mounts`` maps a folder to where it is mounted, or to nothing for its own name."""

    name: str
    tag: str | None = None
    session_type: SessionType = SessionType.INTERACTIVE
    image: str
    architecture: str | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    bootstrap: str = ""
    startup_command: str | None = None
    git: GitSource | None = None
    mounts: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, str] = field(default_factory=dict)
    resource_opts: Mapping[str, str] = field(default_factory=dict)
    scaling_group: str | None = None

    @property
    def bootstrap_script(self) -> str | None:
        """What the session runs first: its repository, then the template's own script."""
        parts = [part for part in (clone_script(self.git) if self.git is not None else "", self.bootstrap) if part]
        return "\n".join(parts) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """``replicas`` kernels of one role, each as a session template says."""

    role: str
    template_id: TemplateId
    replicas: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTemplate:
    """``nodes`` begins with the role ``main``, of which there is one. ``environ`` and ``mounts`` are for all."""

    name: str
    mode: ClusterMode
    nodes: tuple[ClusterNode, ...]
    environ: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, str] = field(default_factory=dict)


class _Fields:
    """One object of a template; every field is asked for by all of its names, and what is left over is refused."""

    def __init__(self, value: Any, where: str) -> None:
        if value == "":
            value = {}
        if not isinstance(value, Mapping):
            raise _bad(where, "must be an object")
        self._left: dict[str, Any] = dict(value)
        self._where = where

    def _place(self, name: str) -> str:
        return f"{self._where}.{name}" if self._where else name

    def any(self, *names: str) -> Any:
        given = [name for name in names if name in self._left]
        if len(given) > 1:
            raise _bad(self._place(given[0]), f"is also given as {given[1]}")
        return self._left.pop(given[0]) if given else ""

    def text(self, *names: str, required: bool = False, max_chars: int = 512) -> str:
        value, where = self.any(*names), self._place(names[0])
        if not isinstance(value, str):
            raise _bad(where, "must be text")
        if required and not value:
            raise _bad(where, "is required")
        if len(value) > max_chars or "\0" in value:
            raise _bad(where, f"exceeds {max_chars} characters or contains a NUL")
        return value

    def texts(self, *names: str) -> dict[str, str]:
        """A map of texts, or a list of names."""
        value, where = self.any(*names), self._place(names[0])
        if isinstance(value, list):
            value = dict.fromkeys(map(str, value), "")
        inner = _Fields(value, where)
        return {str(name): inner.text(name, max_chars=65_536) for name in list(inner._left)}

    def part(self, *names: str) -> _Fields:
        return _Fields(self.any(*names), self._place(names[0]))

    def done(self) -> None:
        if self._left:
            raise _bad(self._place(str(next(iter(self._left)))[:64]), "is unknown")


def _bad(where: str, why: str) -> InvalidInput:
    return InvalidInput(f"The template's {where or 'text'} {why}.", data={"payload": f"{where}: {why}"})


def _head(fields: _Fields, kinds: tuple[str, ...]) -> tuple[str, str | None]:
    """Name and tag."""
    fields.text("api_version", "apiVersion", required=True)
    kind = fields.text("kind", required=True)
    if kind not in kinds:
        raise _bad("kind", f"must be {kinds[0]}, and is {kind[:64]!r}")
    metadata = fields.part("metadata")
    name, tag = metadata.text("name", required=True, max_chars=128), metadata.text("tag", max_chars=64)
    metadata.done()
    return name, tag or None


def read_session_template(document: Mapping[str, Any]) -> SessionTemplate:
    """Read and check a session template.

    Raises:
        InvalidInput: ``data.payload`` names the place.
    """
    fields = _Fields(document, "")
    name, tag = _head(fields, ("taskTemplate", "task_template"))
    spec = fields.part("spec")
    fields.done()
    kind = spec.text("type", "sessionType", "session_type") or "interactive"
    if kind not in (SessionType.INTERACTIVE, SessionType.BATCH):
        raise _bad("spec.type", "is interactive or batch")
    kernel = spec.part("kernel")
    run = kernel.part("run")
    git = kernel.any("git")
    found = SessionTemplate(
        name=name,
        tag=tag,
        session_type=SessionType(kind),
        image=kernel.text("image", required=True),
        architecture=kernel.text("architecture") or None,
        environ=kernel.texts("environ"),
        bootstrap=run.text("bootstrap", max_chars=65_536),
        startup_command=run.text("startup", "stratup", "startup_command", "startupCommand", max_chars=65_536) or None,
        git=_git(_Fields(git, "spec.kernel.git")) if git else None,
        mounts=spec.texts("mounts"),
        resources=spec.texts("resources"),
        resource_opts=spec.texts("resource_opts", "resourceOpts"),
        scaling_group=spec.text("scaling_group", "scalingGroup") or None,
    )
    for part in (run, kernel, spec):
        part.done()
    return found


def _git(fields: _Fields) -> GitSource:
    repository = fields.text("repository", required=True, max_chars=2048)
    try:
        parts = urlsplit(repository)
    except ValueError:
        parts = urlsplit("")
    # ext:: and file: would run or read what the user names, and a dash would be an option
    is_plain = repository.isprintable() and parts.scheme in ("http", "https", "git", "ssh")
    if not is_plain or not parts.hostname:
        raise _bad("spec.kernel.git.repository", "must be an http, https, git or ssh URL")
    credential = fields.part("credential")
    source = GitSource(
        repository=repository,
        branch=_revision(fields, "branch"),
        commit=_revision(fields, "commit"),
        username=credential.text("username"),
        password=credential.text("password"),
        destination=_destination(fields, repository),
    )
    credential.done()
    fields.done()
    return source


def _revision(fields: _Fields, name: str) -> str:
    value = fields.text(name, max_chars=256)
    if value.startswith("-") or not value.isprintable():
        raise _bad(f"spec.kernel.git.{name}", "is no name of a revision")
    return value


def _destination(fields: _Fields, repository: str) -> str:
    given = fields.text("destination_dir", "destinationDir", max_chars=1024)
    name = posixpath.basename(urlsplit(repository).path.rstrip("/")).removesuffix(".git") or "repository"
    path = posixpath.normpath(posixpath.join(_HOME, given or name))
    if not path.startswith(_HOME + "/") or not path.isprintable():
        raise _bad("spec.kernel.git.destination_dir", f"must be a directory below {_HOME}")
    return path


def clone_script(git: GitSource) -> str:
    """A shell script that clones the repository; it ends with an error where that fails.

    The credential is given to git by a helper for this one command, so that it is not kept in the clone.
    """
    where = shlex.quote(git.destination)
    options = ["--branch", shlex.quote(git.branch)] if git.branch else []
    command = ["git"]
    lines = ["export GIT_TERMINAL_PROMPT=0"]
    if git.username or git.password:
        helper = '!f() { printf "username=%s\\npassword=%s\\n" "$BAI_GIT_USER" "$BAI_GIT_PASSWORD"; }; f'
        user, password = shlex.quote(git.username), shlex.quote(git.password)
        command = [f"BAI_GIT_USER={user}", f"BAI_GIT_PASSWORD={password}", "git", "-c"]
        command.append(shlex.quote(f"credential.helper={helper}"))
    # a directory that is not empty was cloned before, in a former life of the session
    clone = " ".join([*command, "clone", *options, "--", shlex.quote(git.repository), where])
    lines.append(f"[ -e {where}/.git ] || {clone} || exit 1")
    if git.commit:
        lines.append(f"git -C {where} checkout --quiet {shlex.quote(git.commit)} -- || exit 1")
    return "\n".join(lines)


def read_cluster_template(document: Mapping[str, Any]) -> ClusterTemplate:
    """Read and check a cluster template: who has which role, and how many of them there are.

    Raises:
        InvalidInput: ``data.payload`` names the place.
    """
    fields = _Fields(document, "")
    name, _ = _head(fields, ("clusterTemplate", "cluster_template"))
    mode = fields.text("mode") or ClusterMode.SINGLE_NODE.value
    if mode not in tuple(ClusterMode):
        raise _bad("mode", "is single-node or multi-node")
    spec = fields.part("spec")
    fields.done()
    listed = spec.any("nodes")
    if not isinstance(listed, list) or not listed:
        raise _bad("spec.nodes", "must be a list of roles")
    nodes = [_node(_Fields(one, f"spec.nodes.{i}"), f"spec.nodes.{i}") for i, one in enumerate(listed)]
    roles = [node.role for node in nodes]
    if len(set(roles)) != len(roles) or [n.replicas for n in nodes if n.role == "main"] != [1]:
        raise _bad("spec.nodes", "must name each role once, and main with one replica")
    nodes.sort(key=lambda node: node.role != "main")
    environ, mounts = spec.texts("environ"), spec.texts("mounts")
    spec.done()
    return ClusterTemplate(name=name, mode=ClusterMode(mode), nodes=tuple(nodes), environ=environ, mounts=mounts)


def _node(fields: _Fields, where: str) -> ClusterNode:
    role, replicas = fields.text("role", required=True), fields.text("replicas") or "1"
    template = fields.text("session_template", "sessionTemplate", required=True)
    fields.done()
    if not _ROLE.fullmatch(role) or role == "master":
        raise _bad(f"{where}.role", "is a lower-case word of at most 15 letters and digits other than master")
    if not replicas.isascii() or not replicas.isdigit() or not 1 <= int(replicas[:9]) <= _MAX_REPLICAS:
        raise _bad(f"{where}.replicas", f"is a number from 1 to {_MAX_REPLICAS}")
    try:
        return ClusterNode(role=role, template_id=TemplateId(UUID(template)), replicas=int(replicas))
    except ValueError:
        raise _bad(f"{where}.session_template", "is the id of a session template") from None
