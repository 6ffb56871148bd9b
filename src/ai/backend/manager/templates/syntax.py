"""Defines the syntax of templates (spec 03-11, "Full syntax for task template"; roles of clusters: spec 03-09). Pure.

Unknown fields are refused with their path, so that misspelt ones are noticed at the upload. All scalars of documents
are text (see :mod:`.documents`), so numbers are read from text.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
from msgspec import Meta

from ai.backend.common.errors import InvalidInput
from ai.backend.common.states import ClusterMode
from ai.backend.common.validation_messages import split_message
from ai.backend.infra.http.fields import duration_s

_HOME = "/home/work"
_NO_NUL_PATTERN = r"^[^\0]*\Z"
_FIELD_SPELLINGS = {
    "apiVersion": "api_version",
    "sessionType": "type",
    "session_type": "type",
    "stratup": "startup",
    "startup_command": "startup",
    "startupCommand": "startup",
    "destinationDir": "destination_dir",
    "resourceOpts": "resource_opts",
    "scalingGroup": "scaling_group",
    "sessionTemplate": "session_template",
    "mountOptions": "mount_options",
    "clusterSize": "cluster_size",
    "clusterMode": "cluster_mode",
    "startsAt": "starts_at",
    "batchTimeout": "batch_timeout",
    "preopenPorts": "preopen_ports",
    "variantRequirements": "variant_requirements",
    "deviceRequests": "device_requests",
    "pluginOptions": "plugin_options",
    "runtimeClass": "runtime_class",
}
_FREE_KEYS = ("environ", "mounts", "resources", "resource_opts", "mount_options", "plugin_options")
"""Fields with objects whose keys the author of the template chooses."""

Text = Annotated[str, Meta(max_length=512, pattern=_NO_NUL_PATTERN)]
Script = Annotated[str, Meta(max_length=65_536, pattern=_NO_NUL_PATTERN)]
Texts = dict[str, Script]
ClaimName = Annotated[str, Meta(max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*\Z")]


class _TemplatePart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Serves as base of the objects in a template's document."""


class Metadata(_TemplatePart, frozen=True):
    name: Annotated[str, Meta(max_length=128, pattern=_NO_NUL_PATTERN)]
    tag: Annotated[str, Meta(max_length=64, pattern=_NO_NUL_PATTERN)] | None = None


class Credential(_TemplatePart, frozen=True):
    username: Text = ""
    password: Text = ""


class GitSource(_TemplatePart, frozen=True):
    """A repository that is cloned when the session starts. ``destination_dir`` is below the home directory."""

    repository: Annotated[str, Meta(max_length=2_048)]
    branch: Annotated[str, Meta(max_length=256)] = ""
    commit: Annotated[str, Meta(max_length=256)] = ""
    credential: Credential = Credential()
    destination_dir: Annotated[str, Meta(max_length=1_024)] = ""

    def __post_init__(self) -> None:
        url_parts = urlsplit(self.repository)
        # ext:: would run a command, file: would read local files, and a leading dash would be an option
        is_safe_url = self.repository.isprintable() and url_parts.scheme in ("http", "https", "git", "ssh")
        if not is_safe_url or not url_parts.hostname:
            raise ValueError("`repository` must be an http, https, git or ssh URL")
        for name, value in (("branch", self.branch), ("commit", self.commit)):
            if value.startswith("-") or not value.isprintable():
                raise ValueError(f"`{name}` is not a name of a revision")
        if not self.destination.startswith(_HOME + "/") or not self.destination.isprintable():
            raise ValueError(f"`destination_dir` must be a directory below {_HOME}")

    @property
    def destination(self) -> str:
        """Returns the absolute path of the clone."""
        name = posixpath.basename(urlsplit(self.repository).path.rstrip("/")).removesuffix(".git") or "repository"
        return posixpath.normpath(posixpath.join(_HOME, self.destination_dir or name))


class Run(_TemplatePart, frozen=True):
    bootstrap: Script = ""
    startup: Script | None = None


class KernelTemplate(_TemplatePart, frozen=True):
    image: Text
    architecture: Text | None = None
    environ: Texts = {}
    run: Run = Run()
    git: GitSource | None = None

    @property
    def bootstrap_script(self) -> str | None:
        """Returns the script that the session runs first: it clones the repository, then runs the template's script."""
        scripts = [
            script for script in (clone_script(self.git) if self.git is not None else "", self.run.bootstrap) if script
        ]
        return "\n".join(scripts) or None


class MountOptions(_TemplatePart, frozen=True):
    permission: Literal["ro", "rw", "wd"] | None = None


class SessionSpec(_TemplatePart, frozen=True):
    """The session of a template. ``mounts`` maps a folder to its mount path; empty is the folder's name. The fields
    from ``mount_options`` on are as in a request for a session (spec 03-01 "Session templates")."""

    kernel: KernelTemplate
    type: Literal["interactive", "batch"] = "interactive"
    mounts: Texts = {}
    resources: Texts = {}
    resource_opts: Texts = {}
    scaling_group: Text | None = None
    mount_options: dict[str, MountOptions] = {}
    cluster_size: Annotated[int, Meta(ge=1, le=1_024)] = 1
    cluster_mode: ClusterMode = ClusterMode.SINGLE_NODE
    priority: Annotated[int, Meta(ge=0, le=100)] | None = None
    starts_at: Annotated[str, Meta(max_length=64)] | None = None
    batch_timeout: Annotated[str, Meta(max_length=32)] | None = None
    preopen_ports: Annotated[list[Annotated[int, Meta(ge=1, le=65_535)]], Meta(max_length=64)] = []
    variant_requirements: Annotated[list[Annotated[str, Meta(max_length=400)]], Meta(max_length=32)] = []
    device_requests: Annotated[list[Annotated[str, Meta(min_length=1, max_length=2048)]], Meta(max_length=8)] = []
    plugin_options: Annotated[dict[str, dict[str, Any]], Meta(max_length=16)] = {}
    runtime_class: Annotated[str, Meta(max_length=64)] = ""
    claim: ClaimName | None = None

    def __post_init__(self) -> None:
        try:
            duration_s(self.batch_timeout)
        except InvalidInput as e:
            raise ValueError(f"`batch_timeout`: {e.data['batchTimeout']}") from None


class SessionTemplate(_TemplatePart, frozen=True):
    """A template of a session (spec: task template)."""

    api_version: Text
    kind: Literal["taskTemplate", "task_template"]
    metadata: Metadata
    spec: SessionSpec


class ClusterNode(_TemplatePart, frozen=True):
    """A role of a cluster: ``replicas`` kernels, each as a session template describes."""

    role: Annotated[str, Meta(pattern=r"^(?!master\Z)[a-z][a-z0-9]{0,14}\Z")]
    session_template: UUID
    replicas: Annotated[int, Meta(ge=1, le=1_024)] = 1


class ClusterSpec(_TemplatePart, frozen=True):
    """The nodes of a cluster. ``environ`` and ``mounts`` are for all nodes."""

    nodes: list[ClusterNode]
    environ: Texts = {}
    mounts: Texts = {}

    def __post_init__(self) -> None:
        roles = [node.role for node in self.nodes]
        if len(set(roles)) != len(roles) or [node.replicas for node in self.nodes if node.role == "main"] != [1]:
            raise ValueError("`nodes` must name each role once, and main with one replica")


class ClusterTemplate(_TemplatePart, frozen=True):
    api_version: Text
    kind: Literal["clusterTemplate", "cluster_template"]
    metadata: Metadata
    spec: ClusterSpec
    mode: ClusterMode = ClusterMode.SINGLE_NODE

    @property
    def nodes(self) -> list[ClusterNode]:
        """Returns the nodes, ``main`` first."""
        return sorted(self.spec.nodes, key=lambda node: node.role != "main")


T = TypeVar("T", SessionTemplate, ClusterTemplate)


def read_template(document: Mapping[str, Any], kind: type[T]) -> T:
    """Reads and checks a template. Raises InvalidInput, whose ``data.payload`` names the field."""
    try:
        return msgspec.convert(_canonical_fields(document, ""), kind, strict=False)
    except msgspec.ValidationError as e:
        field_path, problem = split_message(e, kind)
        raise _malformed_error(field_path.removeprefix("."), problem) from None


def _canonical_fields(document: Mapping[str, Any], field_path: str) -> dict[str, Any]:
    """Returns a document with canonical field names and without empty fields; lists of names become objects."""
    result: dict[str, Any] = {}
    for key, value in document.items():
        name = _FIELD_SPELLINGS.get(key, key)
        if name in result:
            raise _malformed_error(f"{field_path}{name}"[:200], "is given twice, in two spellings")
        if name in _FREE_KEYS:
            value = dict.fromkeys(map(str, value), "") if isinstance(value, list) else value
        elif isinstance(value, Mapping):
            value = _canonical_fields(value, f"{field_path}{name}.")
        elif isinstance(value, list):
            value = [
                _canonical_fields(item, f"{field_path}{name}.") if isinstance(item, Mapping) else item for item in value
            ]
        if value != "":
            result[name] = value
    return result


def _malformed_error(field_path: str, problem: str) -> InvalidInput:
    return InvalidInput(
        f"The template is not valid: {field_path}: {problem}", data={"payload": f"{field_path}: {problem}"}
    )


def clone_script(git: GitSource) -> str:
    """Returns a shell script that clones the repository, and exits with an error if that fails.

    A credential helper of this one command passes the credential to git, so that the clone does not store it.
    """
    path = shlex.quote(git.destination)
    options = ["--branch", shlex.quote(git.branch)] if git.branch else []
    git_command = ["git"]
    script_lines = ["export GIT_TERMINAL_PROMPT=0"]
    if git.credential.username or git.credential.password:
        credential_helper = '!f() { printf "username=%s\\npassword=%s\\n" "$BAI_GIT_USER" "$BAI_GIT_PASSWORD"; }; f'
        user, password = shlex.quote(git.credential.username), shlex.quote(git.credential.password)
        git_command = [f"BAI_GIT_USER={user}", f"BAI_GIT_PASSWORD={password}", "git", "-c"]
        git_command.append(shlex.quote(f"credential.helper={credential_helper}"))
    # an existing clone is from before a restart of the session
    clone_command = " ".join([*git_command, "clone", *options, "--", shlex.quote(git.repository), path])
    script_lines.append(f"[ -e {path}/.git ] || {clone_command} || exit 1")
    if git.commit:
        script_lines.append(f"git -C {path} checkout --quiet {shlex.quote(git.commit)} -- || exit 1")
    return "\n".join(script_lines)
