"""Defines the commands of kube-acc."""

from __future__ import annotations

from pathlib import Path

import click

from ai.backend.common.errors import InvalidInput
from ai.backend.infra.process.daemon import config_option, log_level_option, reported_errors, run_daemon
from ai.backend.infra.settings.load import load_settings
from ai.backend.infra.telemetry import configure_logging_by_settings
from ai.backend.kubeacc.composition import connect, load_driver, run_controllers
from ai.backend.kubeacc.controllers.settings import ControllerSettings
from ai.backend.kubeacc.crd.definitions import crds_yaml
from ai.backend.kubeacc.node_plugin.settings import NodePluginSettings
from ai.backend.kubeacc.policies.admission import access_yaml
from ai.backend.node.kube_api.configuration import cluster_address


@click.group()
def main() -> None:
    """Manage every accelerator of Kubernetes by one framework, with or without a manager."""


@main.command("crds")
def crds() -> None:
    """Print the custom resource definitions, for kubectl apply --server-side -f -."""
    click.echo(crds_yaml(), nl=False)


@main.command("access")
def access() -> None:
    """Print the roles and admission policies, for kubectl apply --server-side -f -."""
    click.echo(access_yaml(), nl=False)


@main.command("start-controllers")
@config_option("kube-acc-controllers")
@click.option(
    "--kubeconfig",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="KUBECONFIG",
    help="The cluster; without it, the one around this pod.",
)
@click.option("--identity", default="", help="The name in the lease; the pod's, or else host and process.")
@click.option("--driver", "driver_names", multiple=True, help="A driver of an IaaS without settings; repeatable.")
@log_level_option
def start_controllers(
    config: Path | None, kubeconfig: Path | None, identity: str, driver_names: tuple[str, ...], log_level: str | None
) -> None:
    """Run the controllers. Of several processes one leads, by the lease kube-acc/kube-acc-controllers."""
    with reported_errors():
        settings = load_settings(ControllerSettings, name="kube-acc-controllers", path=config)
        configure_logging_by_settings("kube-acc", settings.logging, level=log_level)
        cluster_address(kubeconfig)
        tables = {**{name: {} for name in driver_names}, **settings.drivers}
        drivers = [load_driver(name, table) for name, table in tables.items()]
    run_daemon(lambda stop: run_controllers(kubeconfig, stop, identity=identity, drivers=drivers, settings=settings))


@main.group("node-plugin")
def node_plugin() -> None:
    """The plugin of a node: offers its devices to the kubelet, and reports them."""


@node_plugin.command("start-server")
@config_option("kube-acc-node")
@click.option(
    "--kubeconfig",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="KUBECONFIG",
    help="The cluster; without it, the one around this pod.",
)
@log_level_option
def start_node_plugin(config: Path | None, kubeconfig: Path | None, log_level: str | None) -> None:
    """Run the plugin of this node. Devices that pods hold stay theirs while it is restarted."""
    with reported_errors():
        try:
            from ai.backend.kubeacc.node_plugin.daemon import run_node_plugin
        except ModuleNotFoundError as e:
            raise InvalidInput(f"no module {e.name}: install backend.ai with the extra kube-acc") from None
        settings = load_settings(NodePluginSettings, name="kube-acc-node", path=config)
        configure_logging_by_settings("kube-acc-node", settings.logging, level=log_level)
        cluster_address(kubeconfig)
    run_daemon(lambda stop: run_node_plugin(settings, lambda: connect(kubeconfig), stop))
