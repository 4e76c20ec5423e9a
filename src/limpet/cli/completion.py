"""`limpet completion`: what a shell needs in order to complete commands and options."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from limpet.cli import COMPLETE, lines

EPILOG = lines(
    "Example: for this session, and for every one",
    '$ eval "$(limpet completion bash)"',
    "$ limpet completion bash >> ~/.bashrc",
    "$ limpet completion zsh > ~/.zfunc/_limpet",
    "$ limpet completion fish > ~/.config/fish/completions/limpet.fish",
    "Exit codes: 0 printed; 2 wrong usage.",
)


ZSH_REGISTERS = "compdef _limpet_completion limpet"
ZSH_COMPLETES = f"""\
if [[ $funcstack[1] == _limpet ]]; then
  _limpet_completion "$@"
else
  {ZSH_REGISTERS}
fi"""
"""zsh runs a file of fpath for the first completion: it must complete, and not only say how."""


class Shell(StrEnum):
    """A shell that can be told how to complete."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def completion(shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="Your shell.")]) -> None:
    """Print a script that completes limpet's commands and options in your shell. Changes nothing."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    script = get_completion_script(prog_name="limpet", complete_var=COMPLETE, shell=shell.value)
    typer.echo(script.replace(ZSH_REGISTERS, ZSH_COMPLETES) if shell is Shell.zsh else script)
