"""`backend.ai completion SHELL`."""

from __future__ import annotations

import click

from ai.backend.cli.framework.lazy import Leaf


@click.command(cls=Leaf)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a completion script for SHELL.

    \b
      bash: backend.ai completion bash > ~/.local/share/bash-completion/completions/backend.ai
      zsh:  backend.ai completion zsh > a file `_backend.ai` in a directory of $fpath
      fish: backend.ai completion fish > ~/.config/fish/completions/backend.ai.fish
    """
    from click.shell_completion import get_completion_class

    from ai.backend.cli.framework.output import PROGRAM
    from ai.backend.cli.main import COMPLETION_VARIABLE, root

    completer = get_completion_class(shell)
    if completer is None:
        raise click.ClickException(f"there is no completion for {shell}")
    click.echo(completer(root, {}, PROGRAM, COMPLETION_VARIABLE).source())
