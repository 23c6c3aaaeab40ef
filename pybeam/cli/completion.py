"""`pybeam completion`: what makes a shell complete commands, options and files."""

from __future__ import annotations

import shutil

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command(short_help="Print what completes options in a shell.")
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a script that completes commands, options and files of pybeam in a shell.

    The script asks `pybeam` for what fits whenever Tab is pressed. bash must be 4.4 or newer.

    \b
    Examples:
      echo 'eval "$(pybeam completion bash)"' >> ~/.bashrc
      echo 'eval "$(pybeam completion zsh)"' >> ~/.zshrc
      pybeam completion fish > ~/.config/fish/completions/pybeam.fish
    """
    if shell == "bash" and shutil.which(shell) is None:
        raise click.ClickException("there is no bash, whose version must be known")
    kind = get_completion_class(shell)
    assert kind is not None
    group = click.get_current_context().find_root().command
    click.echo(kind(group, {}, "pybeam", "_PYBEAM_COMPLETE").source())
