"""Settings of webhooks."""

from __future__ import annotations

from ipaddress import ip_network

from pydantic import Field, field_validator

from ai.backend.infra.settings import Settings

_REFUSED_NETWORKS = """
    0.0.0.0/8 127.0.0.0/8 169.254.0.0/16 100.100.100.200/32 192.0.0.192/32 224.0.0.0/4 240.0.0.0/4
    ::/127 fe80::/10 ff00::/8 fd00:ec2::254/128 fd20:ce::254/128 64:ff9b::/96 2002::/16
"""


class WebhookSettings(Settings):
    """Limits of posting to the ``callback_url`` of sessions."""

    refused_networks: list[str] = Field(
        _REFUSED_NETWORKS.split(),
        description="Where callbacks never go; by default this machine, its link and the metadata services of clouds.",
    )
    attempts: int = Field(10, ge=1, le=16, description="Tries for each event; the pause between them doubles from 1 s.")
    timeout_s: float = Field(10.0, gt=0, description="How long one try may take, in seconds.")

    @field_validator("refused_networks")
    @classmethod
    def _check_networks(cls, networks: list[str]) -> list[str]:
        for network in networks:
            ip_network(network)
        return networks
