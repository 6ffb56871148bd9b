"""Prepares a workload on disk, in an order in which a crash at any instruction leaves something that can be found."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ai.backend.common.errors import CreationDenied
from ai.backend.common.structs import replace
from ai.backend.node.cdi.application import apply_cdi_edits
from ai.backend.node.cdi.registry import SYSTEM_DIRECTORIES, CdiRegistry
from ai.backend.node.linux import seccomp
from ai.backend.node.linux.open_beneath import BENEATH
from ai.backend.node.workload.directory import write_new_json
from ai.backend.node.workload.file_trees import give_home, place_files, remove_tree
from ai.backend.plugin.crash_points import crash_point
from ai.backend.plugin.runtime import HOME, WorkloadSpec
from ai.backend.runtime.process import rootfs
from ai.backend.runtime.process.bundle import why_denied
from ai.backend.runtime.process.egress import resolver_file
from ai.backend.runtime.process.images import ProcessImage, host_images
from ai.backend.runtime.process.launch_plan import (
    FILES_VARIABLE,
    Host,
    build_plan,
    egress_of,
    folders_of,
    limits_of,
)
from ai.backend.runtime.process.networks import hosts_file
from ai.backend.runtime.process.records import Record, StateDirectory
from ai.backend.runtime.process.sandbox import SYSTEM_DIRECTORIES as VISIBLE_FOLDERS
from ai.backend.runtime.process.settings import ProcessRuntimeSettings
from ai.backend.runtime.workload import record_values


def images_directory(settings: ProcessRuntimeSettings, state_path: Path) -> Path:
    return settings.images_directory or state_path / "images"


def find_images(settings: ProcessRuntimeSettings, state_path: Path) -> list[ProcessImage]:
    """Returns the images of the host's interpreters and the imported images.

    Blocks: runs the host's interpreters for their versions.
    """
    return [*host_images(settings.interpreters), *rootfs.list_images(images_directory(settings, state_path))]


def images_with_current_rootfs(
    known_images: Mapping[str, ProcessImage], settings: ProcessRuntimeSettings, state_path: Path
) -> list[ProcessImage]:
    """Returns the host images among ``known_images``, and the images of all root file systems that are imported now."""
    host_images_by_name = {image.name: image for image in known_images.values() if image.rootfs is None}
    return [*host_images_by_name.values(), *rootfs.list_images(images_directory(settings, state_path))]


def cdi_directories(state_path: Path) -> tuple[str, ...]:
    """Returns the directories with CDI specifications of devices: those of the system, and one of this runtime."""
    return *SYSTEM_DIRECTORIES, str(state_path / "cdi")


class Creation(msgspec.Struct, frozen=True):
    """Prepares one workload for its shim."""

    spec: WorkloadSpec
    image: ProcessImage
    settings: ProcessRuntimeSettings
    host: Host
    state: StateDirectory
    cookie: str

    def prepare(self) -> Record:
        """Writes the workload's record, home, files and plan.

        Raises CreationDenied or OSError; then the caller removes what was written.
        """
        registry = CdiRegistry(cdi_directories(self.state.path))
        visible_folders = VISIBLE_FOLDERS if self.image.rootfs is None else ()
        config = apply_cdi_edits(self.spec.config, registry, visible_folders=visible_folders)
        return replace(self, spec=replace(self.spec, config=config))._prepare()

    def _prepare(self) -> Record:
        spec = self.spec
        if self.host.is_gvisor:
            reason, item_data = why_denied(spec)
            if reason:
                raise CreationDenied(reason, data=item_data)
        if self.image.rootfs is not None and not self.host.bwrap:
            raise CreationDenied("a rootfs image needs bubblewrap, which does not work on this node")
        if self.host.bwrap is None:
            self._check_bare_config()
        directory = self.state.workload(spec.key)
        home = self.state.home(spec.key.kernel_id)
        groups = self.host.cgroups.groups(str(spec.key), limits_of(spec, self.settings))
        record_fields = record_values(spec, self.settings, home)
        record = Record(
            **{**record_fields, "image": self.image.name},
            cookie=self.cookie,
            cgroups=groups,
            sandboxed=bool(self.host.bwrap),
            gvisor=self.host.is_gvisor,
        )
        directory.make()
        crash_point("create.directory")
        directory.write_record(record)
        crash_point("create.record")
        owner = (self.settings.kernel_uid, self.settings.kernel_gid) if self.host.is_root else None
        self._make_home(home, owner)
        crash_point("create.home")
        network_files = {} if spec.network is None else {"/etc/hosts": hosts_file(spec.network)}
        if egress_of(spec, self.host):
            network_files["/etc/resolv.conf"] = resolver_file()
        files = {**spec.files, **network_files}
        folders = folders_of(files, spec, self.host)
        paths_in_folders = {f"{folder}/{name}" for folder, contents in folders.items() for name in contents}
        files = {target: content for target, content in files.items() if target not in paths_in_folders}
        mounted_files = place_files(files, directory.path, home, owner, spec.private_files)
        if self.image.rootfs is not None:  # its /etc is read-only: only what is there can be covered
            rootfs = self.image.rootfs
            mounted_files = {
                target: path
                for target, path in mounted_files.items()
                if not target.startswith("/etc/") or (rootfs / target[1:]).is_file()
            }
        if self.host.has_seccomp and spec.config.extra_syscalls:
            (directory.path / "seccomp.bpf").write_bytes(seccomp.compile_policy(spec.config.extra_syscalls))
        plan = build_plan(
            spec,
            self.image,
            self.settings,
            self.host,
            directory=directory.path,
            home=home,
            cookie=self.cookie,
            groups=groups,
            files=mounted_files if self.host.bwrap else {},
            folders=folders,
        )
        if not self.host.bwrap:
            self._link_bare_mounts(home)
            plan["environ"][FILES_VARIABLE] = str(directory.path / "files")
        write_new_json(directory.path / "plan.json", plan)
        return record

    def _make_home(self, home: Path, owner: tuple[int, int] | None) -> None:
        if not self.spec.keep_home:
            remove_tree(home)
        is_new = not home.exists()
        home.mkdir(mode=0o700, exist_ok=True)
        if is_new:  # else the session's user has chosen what is there
            output_directory = home / ".output"
            output_directory.mkdir(mode=0o755)
            if owner is not None:
                os.chown(output_directory, *owner)
        if owner is not None:
            give_home(home, owner)
            if not self.host.bwrap and not self.host.binds_home:
                # Without mounts of its own the session walks to its home: pass through, do not list.
                for parent in (self.state.path, self.state.homes):
                    parent.chmod(0o711)

    def _check_bare_config(self) -> None:
        """Raises CreationDenied for a mount or device of a workload that this host cannot provide without bubblewrap.

        Without bubblewrap a mount is only a link in the home. The error names the mount or device.
        """
        for mount in self.spec.config.mounts:
            data = {"field": "mounts", "key": mount.target}
            if BENEATH in mount.source:
                raise CreationDenied("without bubblewrap no path in a folder can be mounted", data=data)
            if not mount.target.startswith(HOME + "/") or "/" in mount.target.removeprefix(HOME + "/"):
                raise CreationDenied(f"without bubblewrap nothing can be mounted at {mount.target!r}", data=data)
            if mount.read_only and _is_writable(mount.source, self._session_identity()):
                message = (
                    f"without bubblewrap {mount.target!r} would be writable for the session, and is to be read-only"
                )
                raise CreationDenied(message, data=data)
        if (ipc := self.spec.config.ipc) is not None:
            message = "without bubblewrap sessions have the shared memory of the host, and no other"
            raise CreationDenied(message, data={"field": "ipc", "key": ipc})
        for device in self.spec.config.devices:
            if device.target not in (None, "", device.source):
                message = f"without bubblewrap the device {device.source!r} cannot be at {device.target!r}"
                raise CreationDenied(message, data={"field": "devices", "key": device.target})

    def _session_identity(self) -> tuple[int, int]:
        if self.host.is_root:
            return self.settings.kernel_uid, self.settings.kernel_gid
        return os.getuid(), os.getgid()

    def _link_bare_mounts(self, home: Path) -> None:
        for mount in self.spec.config.mounts:
            link = home / mount.target.removeprefix(HOME + "/")
            if not link.is_symlink():
                link.symlink_to(mount.source)


def _is_writable(path: str, identity: tuple[int, int]) -> bool:
    """Returns True if a user with this user and group may write a path; a missing one is not."""
    try:
        status = os.stat(path)  # noqa: PTH116  # as text, as it was given
    except OSError:
        return False
    uid, gid = identity
    is_owner, is_in_group = status.st_uid == uid, status.st_gid == gid
    needed_bit = stat.S_IWUSR if is_owner else stat.S_IWGRP if is_in_group else stat.S_IWOTH
    return uid == 0 or is_owner or bool(status.st_mode & needed_bit)  # an owner can change the mode
