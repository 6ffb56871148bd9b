"""The programs that a cluster consists of, by family: packages of a Go module or a source in C, and their options."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

MODULES = Path(__file__).resolve().parent / "modules"
VERSION_VARIABLE = "KUBE_VERSION"
"""The environment variable that selects the release of Kubernetes."""
DEFAULT_VERSION = "1.36"
_RELEASES = {"1.36": "v1.36.3", "1.34": "v1.34.4"}
ENGINE_VERSION = "29.0.0"
"""What the engine says of itself: its module has no version of that line."""
_CONTAINERD = "github.com/containerd/containerd/v2/cmd"
_CNI = "github.com/containernetworking/plugins/plugins"


@dataclass(frozen=True, slots=True)
class Change:
    """Describes a change to a file of a module: ``old``, which occurs in it once, is replaced by ``new``."""

    module: str
    file: str
    old: str
    new: str


_PERMITTED_OOM_SCORE = Change(
    "github.com/containerd/containerd/v2",
    "pkg/sys/oom_linux.go",
    "if os.IsPermission(err) && (!runningPrivileged() || userns.RunningInUserNS()) {",
    "if os.IsPermission(err) || (!runningPrivileged() && userns.RunningInUserNS()) {",
)
"""gVisor's shim asks for an OOM score of -999 and ends where that is refused, as it is without CAP_SYS_RESOURCE: with
this change it goes on with the score that it has."""


@dataclass(frozen=True, slots=True)
class Family:
    """Describes programs that are built together.

    ``module`` names the folder with the Go module in which they are built. Families of one module share the versions of
    what they import, so that each package is compiled once. ``programs`` maps names to Go packages. Where
    ``needs_cgo``, the programs link to libraries of this machine. ``folders`` maps names to a module and a folder in
    it, whose files the programs read. ``changes`` are made to the sources of others before they are compiled.
    """

    name: str
    programs: dict[str, str]
    module: str = "cluster"
    tags: str = ""
    link_flags: str = "-s -w"
    needs_cgo: bool = False
    folders: dict[str, tuple[str, str]] | None = None
    changes: tuple[Change, ...] = ()

    @property
    def source(self) -> Path:
        return MODULES / self.module

    def digest(self) -> str:
        """Return the digest of everything in the tree that decides what is built."""
        digest = hashlib.sha256(repr((self.programs, self.tags, self.link_flags, self.folders, self.changes)).encode())
        for path in sorted(path for path in self.source.rglob("*") if path.is_file()):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()[:12]

    def place(self) -> Path:
        """Return the folder of the built programs, which need not exist."""
        return cache_folder() / f"{self.name}-{self.digest()}"

    def is_built(self) -> bool:
        return self.place().is_dir()


class UnknownRelease(ValueError):
    """Says that nothing is known of the release of Kubernetes that is wanted."""


def cache_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/backend.ai/kube``, by default below ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "backend.ai" / "kube"


def selected_version() -> str:
    """Return the release of Kubernetes that ``$KUBE_VERSION`` selects, such as ``1.36``. Raises UnknownRelease."""
    version = os.environ.get(VERSION_VARIABLE) or DEFAULT_VERSION
    if version not in _RELEASES:
        raise UnknownRelease(f"{VERSION_VARIABLE}={version}: the releases are {', '.join(sorted(_RELEASES))}")
    return version


def kubernetes_family(version: str) -> Family:
    names = ("kube-apiserver", "kubelet", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubectl")
    stamp = f"-X k8s.io/component-base/version.gitVersion={_RELEASES[version]}"
    return Family(
        f"kubernetes-{version}",
        {name: f"k8s.io/kubernetes/cmd/{name}" for name in names},
        module="cluster" if version == DEFAULT_VERSION else f"kubernetes-{version}",
        link_flags=f"-s -w {stamp}",
    )


def families() -> dict[str, Family]:
    """Return every family by its name, in the order in which they are built. Raises UnknownRelease."""
    available = (
        Family("pause", {"pause": "pause.c"}, module="pause"),
        Family("etcd", {"etcd": "./etcd"}),
        Family(
            "containerd",
            {name: f"{_CONTAINERD}/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")},
            module="containerd",
            tags="no_btrfs no_zfs no_devmapper",
        ),
        Family("runc", {"runc": "github.com/opencontainers/runc"}, tags="seccomp", needs_cgo=True),
        Family(
            "cni",
            {
                "bridge": f"{_CNI}/main/bridge",
                "host-local": f"{_CNI}/ipam/host-local",
                "loopback": f"{_CNI}/main/loopback",
                "portmap": f"{_CNI}/meta/portmap",
            },
        ),
        Family(
            "engine",
            {name: f"github.com/moby/moby/v2/cmd/{name}" for name in ("dockerd", "docker-proxy")},
            tags="exclude_graphdriver_btrfs no_btrfs no_zfs no_devmapper",
            link_flags=f"-s -w -X github.com/moby/moby/v2/dockerversion.Version={ENGINE_VERSION}",
        ),
        Family(
            "compose",
            {"docker-compose": "github.com/docker/compose/v5/cmd"},
            link_flags="-s -w -X github.com/docker/compose/v5/internal.Version=v5.6.0",
        ),
        Family(
            "kwok",
            {"kwok": "sigs.k8s.io/kwok/cmd/kwok"},
            folders={"stages": ("sigs.k8s.io/kwok", "kustomize/stage")},
        ),
        Family(
            "helm",
            {"helm": "helm.sh/helm/v3/cmd/helm", "kubeconform": "github.com/yannh/kubeconform/cmd/kubeconform"},
        ),
        kubernetes_family(selected_version()),
        Family(
            "gvisor",
            {"runsc": "gvisor.dev/gvisor/runsc", "containerd-shim-runsc-v1": "gvisor.dev/gvisor/shim"},
            module="gvisor",
            changes=(_PERMITTED_OOM_SCORE,),
        ),
    )
    return {family.name: family for family in available}


def program_path(names: tuple[str, ...] | None = None) -> str:
    """Return a search path of the programs of these families, or of all."""
    return os.pathsep.join(str(f.place()) for f in families().values() if names is None or f.name in names)


CLUSTER_FAMILIES = ("pause", "etcd", "containerd", "runc", "cni")
"""What every cluster with a node needs, next to Kubernetes."""


def needed_families(*, kwok: bool = False, gvisor: bool = False) -> list[Family]:
    """Return the families of a cluster. Raises UnknownRelease."""
    available = families()
    chosen = [available[f"kubernetes-{selected_version()}"], *(available[name] for name in CLUSTER_FAMILIES)]
    chosen += [available["kwok"]] if kwok else []
    chosen += [available["gvisor"]] if gvisor else []
    return chosen
