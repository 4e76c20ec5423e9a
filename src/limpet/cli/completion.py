"""`limpet completion`, and the answers to the scripts that it printed.

A script stays in a user's start-up file for years: the variables and instructions that it uses do not change.
"""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from typing import Annotated, Any

from click.shell_completion import CompletionItem, ShellComplete, split_arg_string

from limpet.cli import COMPLETE, say
from limpet.cli.parse import Argument, Exit, Group, echo

__all__ = ["answer_shell", "completion"]

WORDS = "_TYPER_COMPLETE_ARGS"
FISH_ACTION = "_TYPER_COMPLETE_FISH_ACTION"

BASH = f"""\
_limpet_completion() {{
    local IFS=$'\\n'
    COMPREPLY=( $( env COMP_WORDS="${{COMP_WORDS[*]}}" \\
                   COMP_CWORD=$COMP_CWORD \\
                   {COMPLETE}=complete_bash $1 ) )
    return 0
}}

complete -o default -F _limpet_completion limpet"""

ZSH = f"""\
#compdef limpet

_limpet_completion() {{
  eval $(env {WORDS}="${{words[1,$CURRENT]}}" {COMPLETE}=complete_zsh limpet)
}}

if [[ $funcstack[1] == _limpet ]]; then
  _limpet_completion "$@"
else
  compdef _limpet_completion limpet
fi"""
"""zsh runs a file of fpath for the first completion: it must complete, and not only say how."""

_ASK_FISH = f"env {COMPLETE}=complete_fish {FISH_ACTION}=%s {WORDS}=(commandline -cp) limpet"
FISH = (
    f'complete --command limpet --no-files --arguments "({_ASK_FISH % "get-args"})" '
    f'--condition "{_ASK_FISH % "is-args"}"'
)


class Shell(StrEnum):
    """A shell with completion."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def completion(shell: Annotated[Shell, Argument(metavar="bash|zsh|fish", help="Your shell.")]) -> None:
    """Print a script that completes limpet's commands and options in your shell. Changes nothing.

    Example: for this session, and for every one
    $ eval "$(limpet completion bash)"
    $ limpet completion bash >> ~/.bashrc
    $ limpet completion zsh > ~/.zfunc/_limpet
    $ limpet completion fish > ~/.config/fish/completions/limpet.fish
    Exit codes: 0 printed; 2 wrong usage.
    """
    echo({Shell.bash: BASH, Shell.zsh: ZSH, Shell.fish: FISH}[shell])


def answer_shell(parser: Group) -> None:
    """Answer a shell's request for completions.   Raises: Exit, with code 1 for a request that is not known."""
    action, _, shell = os.environ[COMPLETE].partition("_")
    if action != "complete" or shell not in {*Shell}:
        say(f"limpet: {COMPLETE} asks for nothing that is known", err=True)
        raise Exit(1)
    if shell == Shell.bash:
        words = split_arg_string(os.environ.get("COMP_WORDS", ""))
        words = words[: int(os.environ.get("COMP_CWORD", "0")) + 1]
        is_begun = len(words) > int(os.environ.get("COMP_CWORD", "0"))
    else:
        typed = os.environ.get(WORDS, "")
        words, is_begun = split_arg_string(typed), not typed.endswith(" ")
    before, incomplete = (words[1:-1], words[-1]) if is_begun and len(words) > 1 else (words[1:], "")
    items = ShellComplete(parser, {}, "limpet", COMPLETE).get_completions(before, incomplete)
    if shell == Shell.bash:
        echo("\n".join(item.value for item in items))
    elif shell == Shell.zsh:
        shown = "\n".join(map(_for_zsh, items))
        echo(f"_arguments '*: :(({shown}))'" if items else "_files")
    elif os.environ.get(FISH_ACTION) == "is-args":
        sys.exit(0 if items else 1)
    else:
        echo("\n".join(f"{item.value}\t{_help(item)}" if item.help else item.value for item in items))


def _for_zsh(item: CompletionItem) -> str:
    value = f'"{_escaped(item.value)}"'
    return f'{value}:"{_escaped(_help(item))}"' if item.help else value


def _escaped(text: str) -> str:
    pairs: Any = {'"': '""', "'": "''", "$": "\\$", "`": "\\`", ":": "\\\\:"}
    return text.translate(str.maketrans(pairs))


def _help(item: CompletionItem) -> str:
    return " ".join((item.help or "").split())
