"""Defines the identifiers of the domain as distinct types. UUIDs travel as their canonical 36-character text."""

from __future__ import annotations

from typing import NewType
from uuid import UUID

SessionId = NewType("SessionId", UUID)
"""A compute session, unique for ever (spec 03-08, "Session Management")."""
KernelId = NewType("KernelId", UUID)
"""One kernel of a session: the unit that the scheduler places (spec 03-01, "Sessions and kernels")."""
AgentId = NewType("AgentId", str)
"""An agent, chosen by its configuration; at most 64 characters of the slug alphabet."""
AccessKey = NewType("AccessKey", str)
"""The public half of a keypair; at most 20 characters."""
UserId = NewType("UserId", UUID)
GroupId = NewType("GroupId", UUID)
"""A group, which newer documents call project."""
DomainName = NewType("DomainName", str)
ResourceGroupName = NewType("ResourceGroupName", str)
"""A resource group; the wire of the published client calls it scaling group."""
DeviceName = NewType("DeviceName", str)
"""The name of a device kind, which is the first part of its slot names: ``cuda`` of ``cuda.shares``."""
DeviceId = NewType("DeviceId", str)
"""A device, unique and stable inside its plugin on its node."""
SlotName = NewType("SlotName", str)
"""A resource slot: ``<device>`` or ``<device>.<subtype>`` (spec 03-01, "Resource slots")."""
TaskId = NewType("TaskId", UUID)
"""A background task."""
RunId = NewType("RunId", str)
"""One run of user code inside a session (spec 03-08, "Code Execution Model")."""
FolderId = NewType("FolderId", UUID)
"""A virtual folder, unique for ever."""
InvitationId = NewType("InvitationId", UUID)
"""An invitation to use somebody's virtual folder."""
RegistryId = NewType("RegistryId", UUID)
"""A registry that artifacts come from (spec 03-17)."""
ArtifactId = NewType("ArtifactId", UUID)
"""A model, package or image of a registry."""
RevisionId = NewType("RevisionId", UUID)
"""One version of an artifact."""
TemplateId = NewType("TemplateId", UUID)
"""A template of sessions or of clusters (spec 03-11)."""
