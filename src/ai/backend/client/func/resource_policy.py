"""Manages resource policies of keypairs, users and groups, and resource presets."""

from __future__ import annotations

from ai.backend.client.func.base import NamedObjects


class AsyncKeypairResourcePolicy(NamedObjects):
    """Manages resource limits of keypairs (``api_session.KeypairResourcePolicy``)."""

    noun = "keypair_resource_policy"
    plural = "keypair_resource_policies"
    inputs = ("CreateKeyPairResourcePolicyInput", "ModifyKeyPairResourcePolicyInput")
    fields = (
        "name", "created_at", "default_for_unspecified", "total_resource_slots", "max_session_lifetime",
        "max_concurrent_sessions", "max_containers_per_session", "max_pending_session_count",
        "max_pending_session_resource_slots", "idle_timeout", "max_vfolder_count", "max_vfolder_size", "max_claims",
        "max_claim_idle_time",
        "allowed_vfolder_hosts",
    )  # fmt: skip


class AsyncUserResourcePolicy(NamedObjects):
    """Manages storage limits of users (``api_session.UserResourcePolicy``).

    ``props``: ``max_vfolder_count`` (0: any number) and ``max_quota_scope_size`` in bytes (-1: no limit).
    """

    noun = "user_resource_policy"
    plural = "user_resource_policies"
    inputs = ("CreateUserResourcePolicyInput", "ModifyUserResourcePolicyInput")
    fields = ("name", "max_vfolder_count", "max_quota_scope_size")


class AsyncProjectResourcePolicy(AsyncUserResourcePolicy):
    """Manages storage limits of groups, with the same ``props`` (``api_session.ProjectResourcePolicy``)."""

    noun = "project_resource_policy"
    plural = "project_resource_policies"
    inputs = ("CreateProjectResourcePolicyInput", "ModifyProjectResourcePolicyInput")


class AsyncResourcePreset(NamedObjects):
    """Manages resource presets (``api_session.ResourcePreset``).

    ``resource_slots`` is a map, ``shared_memory`` a size such as ``64m`` (0: none), ``device_requests`` a list of
    expressions, alternatives of what its devices must be.
    """

    noun = "resource_preset"
    plural = "resource_presets"
    inputs = ("CreateResourcePresetInput", "ModifyResourcePresetInput")
    fields = ("name", "resource_slots", "shared_memory", "device_requests")
