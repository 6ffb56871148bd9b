"""The groups of `backend.ai session` and `backend.ai admin session`, and the shortcuts below the root."""

from __future__ import annotations

from ai.backend.cli.framework.lazy import Entry, LazyGroup

_SESSION_MODULE = "ai.backend.cli.session.commands:"
_APPS_MODULE = "ai.backend.cli.session.apps:"
_SSH_MODULE = "ai.backend.cli.session.ssh:"
_FILES_MODULE = "ai.backend.cli.session.files:"
_WATCH_MODULE = "ai.backend.cli.session.watch:"

_LIST_ENTRY = Entry("ai.backend.cli.session.ps:session_list", "List sessions.")
SESSION_COMMANDS = {
    "run": Entry("ai.backend.cli.run.command:run", "Run code in a session: one call from code to output."),
    "start": Entry("ai.backend.cli.session.start:start", "Start a session and leave it running."),
    "ps": Entry("ai.backend.cli.session.ps:ps", "List sessions."),
    "info": Entry(_SESSION_MODULE + "info", "Show the details of a session."),
    "explain": Entry("ai.backend.cli.session.explain:explain", "Tell why a session waits, and what would help."),
    "logs": Entry("ai.backend.cli.session.logs:logs", "Print the console log of a session."),
    "top": Entry("ai.backend.cli.session.top:top", "Show what the processes of a session use."),
    "rm": Entry(_SESSION_MODULE + "rm", "Terminate sessions, or cancel pending ones."),
    "restart": Entry(_SESSION_MODULE + "restart", "Restart sessions in place."),
    "rename": Entry(_SESSION_MODULE + "rename", "Give a session another name."),
    "interrupt": Entry(_SESSION_MODULE + "interrupt", "Interrupt the code that a session runs."),
    "commit": Entry(_SESSION_MODULE + "commit", "Make an archive or an image of a session."),
    "complete": Entry(_SESSION_MODULE + "complete", "Ask a session how code could go on."),
    "status-history": Entry(_SESSION_MODULE + "status_history", "Show when a session came to each status."),
    "events": Entry(_WATCH_MODULE + "events", "Follow the events of a session."),
    "watch": Entry(_WATCH_MODULE + "watch", "Wait for a session's end and exit with its result."),
    "exec": Entry("ai.backend.cli.session.exec:exec_", "Run a command or a shell in a session."),
    "upload": Entry(_FILES_MODULE + "upload", "Put files into a session."),
    "download": Entry(_FILES_MODULE + "download", "Fetch files from a session."),
    "ls": Entry(_FILES_MODULE + "ls", "List files in a session."),
    "apps": Entry(_APPS_MODULE + "apps", "List the services of a session."),
    "app": Entry(_APPS_MODULE + "app", "Open a local port to a service of a session."),
    "ssh": Entry(_SSH_MODULE + "ssh", "Open a shell in a session by OpenSSH."),
    "scp": Entry(_SSH_MODULE + "scp", "Copy files to or from a session by OpenSSH."),
    "ssh-config": Entry(
        "ai.backend.cli.session.ssh_config:ssh_config", "Make `ssh SESSION.backend.ai`, rsync and editors work."
    ),
    "sftp": Entry(_SSH_MODULE + "sftp", "Browse the files of a session by OpenSSH."),
}
_SAME_NAMES = {name: entry for name, entry in SESSION_COMMANDS.items() if name not in {"ps", "start", "rm"}}

session = LazyGroup(
    "session",
    help="Compute sessions, under the names of the published command tree.",
    entries={
        "create": SESSION_COMMANDS["start"],
        "list": _LIST_ENTRY,
        "destroy": SESSION_COMMANDS["rm"],
        **_SAME_NAMES,
    },
)
admin_session = LazyGroup(
    "session", help="Sessions of all users.", entries={"list": _LIST_ENTRY, "info": SESSION_COMMANDS["info"]}
)
