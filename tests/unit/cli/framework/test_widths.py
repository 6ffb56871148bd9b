"""Every list fits a terminal of 80 columns with values of usual lengths, without a folded line."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.cells import cell_len

from ai.backend.cli.accelerator import listing
from ai.backend.cli.admin import agents, cluster, policies, tenants, users
from ai.backend.cli.artifact import admin as artifact_admin
from ai.backend.cli.artifact import commands as artifact_commands
from ai.backend.cli.framework.output import Column, Screen
from ai.backend.cli.image import admin as image_admin
from ai.backend.cli.session import apps, ps
from ai.backend.cli.vfolder import commands as vfolder_commands
from ai.backend.cli.vfolder import quotas, sharing

AN_ID = "8c8c9921-10a9-4c94-a57c-f27e9a75b735"
WHEN = (datetime.now(UTC) - timedelta(minutes=59)).isoformat()
SESSION = {
    "name": "train-resnet", "id": AN_ID, "image": "cr.backend.ai/stable/python:3.12-cuda", "status": "TERMINATING",
    "status_info": "user-requested", "status_changed": WHEN, "result": "UNDEFINED",
}  # fmt: skip
FOLDER = {
    "name": "imagenet-small", "id": AN_ID, "host": "local:volume1", "owner": "ann@example.com", "permission": "rw",
    "created_at": WHEN, "usage_mode": "general", "ownership_type": "user",
}  # fmt: skip
AGENT = {
    "id": "i-node-01", "status": "ALIVE", "scaling_group": "default", "used": "cpu 12/64, mem 64g/512g, cuda 3/8",
    "plugins": ["cpu", "mem", "cuda"], "enforced": ["cpu", "memory", "pids"],
}  # fmt: skip
USER = {
    "email": "ann@example.com", "username": "ann@example.com", "full_name": "Ann Example", "role": "superadmin",
    "status": "active", "domain_name": "default", "groups": ["default"], "uuid": AN_ID,
}  # fmt: skip
KEYPAIR = {
    "user_id": "ann@example.com", "access_key": "AKIAEZRWJC47YYWD9V2H", "is_active": True, "is_admin": False,
    "resource_policy": "default", "rate_limit": 30000, "concurrency_used": 12, "last_used": WHEN,
}  # fmt: skip
IMAGE = {
    "name": "stable/python", "registry": "cr.backend.ai", "architecture": "x86_64", "tag": "3.12-cuda",
    "digest": "0" * 64, "size": "1023.9 MiB", "aliases": ["python"], "here": "on 12",
}  # fmt: skip
TENANT = {
    "name": "research", "id": AN_ID, "domain_name": "default", "description": "computer vision", "is_active": True,
    "slots": "cpu=64, mem=512g", "allowed_vfolder_hosts": {"local:volume1": ["create-vfolder"]},
}  # fmt: skip
RESOURCE_GROUP = {
    "name": "gpu-large", "description": "eight devices each", "is_active": True, "is_public": False,
    "scheduler": "fair-share", "scheduler_opts": {"agent_selection_strategy": "concentrated"},
}  # fmt: skip
POLICY = {
    "name": "default", "slots": "cpu=64, mem=512g", "default_for_unspecified": "UNLIMITED", "idle_timeout": 3600,
    "max_concurrent_sessions": 30, "max_containers_per_session": 4, "max_session_lifetime": 86400,
}  # fmt: skip
QUOTA = {
    "host": "local:volume1", "scope": "user:ann@example.com", "used": "1023.9 MiB", "limit": "100.0 GiB",
    "enforcement": "hard",
}  # fmt: skip
REVISION = {
    "name": "acme/tiny-model", "version": "main", "type": "MODEL", "registry": "huggingface", "status": "AVAILABLE",
    "size": "1023.9 MiB",
}  # fmt: skip
REGISTRY = {"name": "hub", "type": "huggingface", "url": "https://huggingface.co", "storages": {"download": "a:b"}}
INVITATION = {"vfolder_name": "data", "inviter": "ann@example.com", "invitee": "bob@example.com", "perm": "rw"}
SHARE = {"vfolder_name": "data", "email": "bob@example.com", "perm": "rw", "user": AN_ID}
SERVICE = {"name": "jupyterlab", "protocol": "http", "ports": "8081", "allowed_arguments": "--theme"}
PLUGIN = {"name": "cuda", "slots": "cuda.device 8", "devices": "8 (1 unhealthy)", "state": "healthy"}
CONTAINER = {
    "name": "train-resnet", "email": "ann@example.com", "image_name": "python:3.12", "smp": 12,
    "mem_allocated": "8.0 GiB", "cpu_used": 86400, "started_at": WHEN, "terminated_at": WHEN,
}  # fmt: skip

LISTS: dict[str, tuple[Sequence[Column], dict[str, Any]]] = {
    "ps": (ps.columns_of(ps.CONSOLE_FIELDS, is_wide=False), SESSION),
    "ps --dead": (ps.columns_of(ps.DEAD_FIELDS, is_wide=False), SESSION),
    "vfolder list": (vfolder_commands.COLUMNS, FOLDER),
    "vfolder invitations": (sharing.INVITATION_COLUMNS, {**INVITATION, "id": AN_ID}),
    "vfolder shared": (sharing.SHARE_COLUMNS, SHARE),
    "quota": (quotas.COLUMNS, QUOTA),
    "apps": (apps.COLUMNS, SERVICE),
    "artifact list": (artifact_commands.COLUMNS, REVISION),
    "accelerator list": (listing.PLUGIN_COLUMNS, PLUGIN),
    "admin artifact registry list": (artifact_admin.REGISTRY_COLUMNS, REGISTRY),
    "admin agent list": (agents.AGENT_COLUMNS, AGENT),
    "admin user list": (users.USER_COLUMNS, USER),
    "admin keypair list": (users.KEYPAIR_COLUMNS, KEYPAIR),
    "admin image list": (image_admin.COLUMNS, IMAGE),
    "admin domain list": (tenants.COLUMNS, TENANT),
    "admin group list": (tenants.GROUP_COLUMNS, TENANT),
    "admin scaling-group list": (policies.GROUP_COLUMNS, RESOURCE_GROUP),
    "admin keypair-resource-policy list": (policies.POLICY_COLUMNS, POLICY),
    "admin resource usage-per-month": (cluster.CONTAINERS, CONTAINER),
}


@pytest.mark.parametrize(("columns", "row"), LISTS.values(), ids=LISTS)
def test_a_list_fits(columns: Sequence[Column], row: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    Screen().print_table([row], columns)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert [line for line in lines if cell_len(line) > 80] == []
