"""Commands of kube-acc."""

from __future__ import annotations

import click

from ai.backend.kubeacc.crd.definitions import crds_yaml
from ai.backend.kubeacc.policies.deployment import access_yaml


@click.group()
def main() -> None:
    """One framework for every accelerator in Kubernetes, with or without a manager."""


@main.command("crds")
def crds() -> None:
    """Print the custom resource definitions, for kubectl apply --server-side -f -."""
    click.echo(crds_yaml(), nl=False)


@main.command("access")
def access() -> None:
    """Print the roles and admission policies, for kubectl apply --server-side -f -."""
    click.echo(access_yaml(), nl=False)
