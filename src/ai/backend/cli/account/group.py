"""The group of `backend.ai keypair`."""

from __future__ import annotations

from ai.backend.cli.framework.lazy import Entry, LazyGroup

keypair = LazyGroup(
    "keypair",
    help="Your own keypair.",
    entries={
        "info": Entry("ai.backend.cli.admin.cluster:keypair_info", "Show your own keypair."),
        "ssh-key": Entry("ai.backend.cli.account.account:ssh_key", "The SSH key that opens your sessions."),
    },
)
