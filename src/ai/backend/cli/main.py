"""The root of the `backend.ai` command."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext

import click

from ai.backend.cli.conflicts import find_conflict_error
from ai.backend.cli.framework.lazy import Entry, LazyGroup, output_option
from ai.backend.cli.framework.output import PROGRAM, Screen
from ai.backend.cli.session.group import SESSION_COMMANDS

COMPLETION_VARIABLE = "_BACKEND_AI_COMPLETE"

ENTRIES = {
    **SESSION_COMMANDS,
    "submit": Entry("ai.backend.cli.array.commands:submit", "Enqueue a batch session, or an array of them."),
    "array": Entry("ai.backend.cli.array.commands:array", "Arrays of batch sessions."),
    "claim": Entry("ai.backend.cli.claim.commands:claim", "Accelerators that stay yours between sessions."),
    "service": Entry("ai.backend.cli.service.commands:service", "Model services: serve a model to many callers."),
    "create": Entry("ai.backend.cli.session.start:start", "The same as start."),
    "destroy": Entry("ai.backend.cli.session.commands:rm", "The same as rm."),
    "session": Entry("ai.backend.cli.session.group:session", "The same commands by the names of the published tree."),
    "admin": Entry("ai.backend.cli.admin.group:admin", "Agents, keypairs and all users' sessions."),
    "keypair": Entry("ai.backend.cli.admin.users:keypair", "Your own keypair."),
    "resource": Entry("ai.backend.cli.admin.cluster:resource", "Resource slots and presets."),
    "vfolder": Entry("ai.backend.cli.vfolder.commands:vfolder", "Virtual folders: make, share and fill them."),
    "sesstpl": Entry("ai.backend.cli.session.templates:sesstpl", "Templates that sessions are made from."),
    "session-template": Entry("ai.backend.cli.session.templates:sesstpl", "The same as sesstpl."),
    "start-template": Entry("ai.backend.cli.session.templates:start_template", "Start a session as a template says."),
    "dotfile": Entry("ai.backend.cli.session.templates:dotfile", "Files that are in every new session."),
    "quota": Entry("ai.backend.cli.vfolder.quotas:quota", "Show what you keep on storage hosts, and may keep."),
    "artifact": Entry(
        "ai.backend.cli.artifact.commands:artifact", "Models, packages and images that sessions can mount."
    ),
    "image": Entry("ai.backend.cli.image.local:image", "Images of sessions, and root file systems as such."),
    "accelerator": Entry(
        "ai.backend.cli.accelerator.commands:accelerator", "Accelerator plugins and devices of this node."
    ),
    "server-logs": Entry("ai.backend.cli.admin.manager:server_logs", "Errors that clients reported."),
    "update-password": Entry("ai.backend.cli.account:update_password", "Change your password."),
    "update-password-no-auth": Entry(
        "ai.backend.cli.account:update_password_no_auth", "Change a password that must be changed."
    ),
    "totp": Entry("ai.backend.cli.account:totp", "One-time passwords of your account."),
    "sudo": Entry("ai.backend.cli.account:sudo", "Prove again that it is you, for grave operations."),
    "sign-ins": Entry("ai.backend.cli.account:sign_ins", "List the sign-ins to your account."),
    "signup": Entry("ai.backend.cli.account:sign_up", "Ask for an account."),
    "verify-email": Entry("ai.backend.cli.account:verify_email", "Prove the address of a new account."),
    "config": Entry("ai.backend.cli.account:config", "Show the configuration in force."),
    "proxy": Entry("ai.backend.cli.proxy:proxy", "Sign the requests of a local port."),
    "completion": Entry("ai.backend.cli.reference:completion", "Print a completion script for a shell."),
    "ssh-proxy": Entry("ai.backend.cli.session.ssh_config:ssh_proxy", "What OpenSSH starts, as ssh-config says."),
    "up": Entry("ai.backend.standalone.main:up", "Start the embedded cluster.", "embedded cluster"),
    "down": Entry("ai.backend.standalone.main:down", "Stop the embedded cluster.", "embedded cluster"),
    "reload": Entry("ai.backend.standalone.main:reload", "Reload the agents' plugins.", "embedded cluster"),
    "mgr": Entry("ai.backend.manager.main:main", "The manager daemon.", "manager"),
    "ag": Entry("ai.backend.agent.main:main", "The agent daemon.", "agent"),
    "storage": Entry("ai.backend.storage.main:main", "The storage proxy daemon.", "storage proxy"),
    "app-proxy-coordinator": Entry(
        "ai.backend.appproxy.coordinator.main:main", "The coordinator of the app proxy.", "app proxy coordinator"
    ),
    "app-proxy-worker": Entry(
        "ai.backend.appproxy.worker.main:main", "The worker of the app proxy.", "app proxy worker"
    ),
    "worker": Entry("ai.backend.appproxy.worker.main:main", "The same as app-proxy-worker.", "app proxy worker"),
    "coordinator": Entry(
        "ai.backend.appproxy.coordinator.main:main", "The same as app-proxy-coordinator.", "app proxy coordinator"
    ),
    "web": Entry("ai.backend.web.main:main", "The web server daemon.", "web server"),
    "kube-acc": Entry("ai.backend.kubeacc.main:main", "Accelerators of Kubernetes clusters.", "kube-acc"),
}

_DAEMONS = frozenset(
    (
        *("up", "down", "reload", "mgr", "ag", "storage", "web", "worker", "coordinator"),
        *("app-proxy-worker", "app-proxy-coordinator"),
    )
)
ALIASES = frozenset({"create", "destroy", "session-template", "ssh-proxy", "coordinator", "worker"})
"""Commands that the help leaves out, since it shows them by another name, or other programs start them."""

SECTIONS = {
    "Common commands": ("up", "down", "run", "start", "submit", "ps", "exec", "logs", "ssh", "rm"),
    "Commands on sessions": (
        "info", "explain", "top", "watch", "events", "status-history", "interrupt", "restart", "rename", "commit",
        "complete", "start-template",
    ),
    "Files and services of sessions": ("upload", "download", "ls", "scp", "sftp", "apps", "app", "ssh-config"),
    "Management commands": (
        "array", "claim", "service", "vfolder", "quota", "artifact", "image", "sesstpl", "dotfile", "resource",
        "accelerator", "session",
    ),
    "Your account": (
        *("config", "keypair", "totp", "sudo", "sign-ins", "update-password", "update-password-no-auth", "signup"),
        *("verify-email", "proxy", "completion"),
    ),
    "Administration": (
        "admin", "reload", "server-logs", "mgr", "ag", "storage", "web", "app-proxy-coordinator", "app-proxy-worker",
        "kube-acc",
    ),
}  # fmt: skip


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from ai.backend.common.release import release_version

        click.echo(f"{PROGRAM} {release_version()}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    entries=ENTRIES,
    sections=SECTIONS,
    params=[
        output_option(),
        click.Option(
            ["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Version."
        ),
    ],
)
@click.pass_context
def root(ctx: click.Context) -> None:
    """Compute sessions on heterogeneous accelerators, from the command line.

    \b
      backend.ai up                                start a cluster on this computer
      backend.ai run --rm -c 'print(1)' python     run code in a session of its own
      backend.ai ps                                see your sessions
    """
    ctx.ensure_object(Screen)


def _trace_command() -> AbstractContextManager[object]:
    """Returns a context manager that records the running command as a tracing span, if a collector is configured.

    The environment names the collector. Daemons are not recorded here, because they have their own settings.
    """
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    if "OTEL_EXPORTER_OTLP_ENDPOINT" not in os.environ or not arguments or arguments[0] in _DAEMONS:
        return nullcontext()
    from ai.backend.infra.telemetry.sending import traced_command

    return traced_command(f"{PROGRAM} {arguments[0]}")


def main() -> None:
    """Runs the command `backend.ai` with the arguments of the process, and prints each error in one line."""
    conflict_error = find_conflict_error()
    screen = Screen()
    if conflict_error is not None:
        screen.fail(conflict_error)
    try:
        with _trace_command():
            root.main(prog_name=PROGRAM, complete_var=COMPLETION_VARIABLE, standalone_mode=False, obj=screen)
    except click.UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # older releases of click do not have it
            click.echo(error.format_message())
            sys.exit(2)
        command_path = error.ctx.command_path if error.ctx else PROGRAM
        screen.error(f"{error.format_message().rstrip('.')} (see `{command_path} --help`)", code="usage")
        sys.exit(2)
    except click.ClickException as error:
        screen.fail(error.format_message())
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except (click.Abort, KeyboardInterrupt):
        print(file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        from ai.backend.cli.framework.invoke import end_output

        sys.exit(end_output())
    except OSError as error:
        from ai.backend.cli.framework.invoke import report_os_error

        sys.exit(report_os_error(screen, error))


if __name__ == "__main__":
    main()
