"""The parser of the command line, made from functions: the signature of a command says its options.

    def show(name: Annotated[str, Argument(metavar="NAME")], url: UrlOption = None) -> None:
        '''Show one lock.'''

The docstring is the help; from its first `Example` on, it is the epilog. Many options are the fields of a dataclass,
which the function takes as one parameter. A group imports the module of a command when
the command is typed, and until then lists it by a line of its own. Only this file, `help` and `completion` know Click.
"""

from __future__ import annotations

import math
import os
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from importlib import import_module
from inspect import Parameter, cleandoc, signature
from typing import Any, NamedTuple, cast

import click
from click import Abort, BadParameter, Context, NoSuchOption, UsageError, confirm, echo
from click.core import ParameterSource
from click.exceptions import Exit, NoArgsIsHelpError

from limpet.cli import COMMANDS

__all__ = [
    "Abort",
    "Argument",
    "BadParameter",
    "Command",
    "Context",
    "Exit",
    "Group",
    "HelpNote",
    "HintedUsageError",
    "NoArgsIsHelpError",
    "NoSuchOption",
    "Option",
    "ShownArgument",
    "ShownOption",
    "UsageError",
    "confirm",
    "echo",
    "group",
    "lines",
    "shown_names",
]

OPTIONS = "Options"


class HintedUsageError(UsageError):
    """A mistake in a command line, with a hint; without one, the usage is shown."""

    def __init__(self, message: str, hint: str, context: Context | None) -> None:
        super().__init__(message, context)
        self.hint = hint


class HelpNote(NamedTuple):
    """The help of an option or an argument: its text, its default, its variables, and the frame that it stands in."""

    text: str
    default: Any = None
    variables: tuple[str, ...] = ()
    panel: str = OPTIONS


class ShownArgument(click.Argument):
    """An argument of a command, with its help."""

    said: HelpNote


class ShownOption(click.Option):
    """An option of a command, with its help. `--url` may stand before the command, too."""

    said: HelpNote

    def consume_value(self, ctx: Context, opts: Mapping[str, Any]) -> tuple[Any, Any]:
        """The value, and where it is from.   Raises: UsageError for two URLs."""
        value, source = super().consume_value(ctx, opts)
        before = url_before(ctx) if self.name == "url" else None
        if before is None:
            return value, source
        if source is ParameterSource.COMMANDLINE and value != before:
            raise HintedUsageError(f"Two URLs: {before}, and --url {value}", "leave one of them out", ctx)
        return before, ParameterSource.COMMANDLINE


def url_before(context: Context) -> str | None:
    """The URL that was typed before the command: `limpet -u ./fleet status`."""
    root = context.find_root()
    return None if root is context else root.params.get("url")


class Argument:
    """An argument as a function declares it. `parser` makes the value of a text, or raises `BadParameter`.

    `names`: what it names, as `limpet.cli.fleet_names` lists it for the shell's completion.
    """

    panel = "Arguments"

    def __init__(
        self,
        *,
        names: str = "",
        metavar: str | None = None,
        help: str = "",
        parser: Callable[[str], Any] | None = None,
        show_default: bool | str = True,
        envvar: str | Sequence[str] | None = None,
    ) -> None:
        self.names_of = names
        self.metavar = metavar
        self.help = help
        self.parser = parser
        self.show_default = show_default
        self.envvar = envvar

    def parameter(self, name: str, kind: Any, default: Any) -> click.Parameter:
        """The argument for Click."""
        about = self._about(default)
        many = is_list(kind)
        shown = (self.metavar or name.upper()).strip("[]") + ("..." if many else "")
        about |= {"nargs": -1 if many else 1, "metavar": shown if about["required"] else f"[{shown}]"}
        made = ShownArgument([name], type=_ValueType(kind, self.parser, names=self.names_of), **about)
        made.said = self._said(kind, default)
        return made

    def _about(self, default: Any) -> dict[str, Any]:
        is_required = default is Parameter.empty
        return {"envvar": self.envvar, "required": is_required} | ({} if is_required else {"default": default})

    def _said(self, kind: Any, default: Any) -> HelpNote:
        shown = self.show_default if isinstance(self.show_default, str) else default
        if not self.show_default or shown is Parameter.empty or bare(kind) is bool:
            shown = None
        names = (self.envvar,) if isinstance(self.envvar, str) else self.envvar or ()
        return HelpNote(self.help, shown, (*names,), self.panel)


class Option(Argument):
    """An option as a function declares it: its names, of which `--yes/--no` sets a flag either way.

    A long name may be left out if it is that of the parameter.
    """

    def __init__(
        self,
        *names: str,
        min: float | None = None,
        max: float | None = None,
        hidden: bool = False,
        panel: str = OPTIONS,
        **about: Any,
    ) -> None:
        super().__init__(**about)
        self.names = names
        self.range = (min, max)
        self.hidden = hidden
        self.panel = panel

    def parameter(self, name: str, kind: Any, default: Any) -> click.Parameter:
        """The option for Click."""
        about = self._about(default) | {"hidden": self.hidden}
        if bare(kind) is bool:
            about |= {"is_flag": True}
        else:
            value = _ValueType(kind, self.parser, self.range, self.names_of)
            about |= {"type": value, "multiple": is_list(kind), "metavar": self.metavar or value.word}
        is_named = len(name) == 1 or any(each.startswith("--") for each in self.names)
        names = self.names if is_named else (f"--{name.replace('_', '-')}", *self.names)
        made = ShownOption([name, *names], **about)
        made.said = self._said(kind, default)
        return made


class _ValueType(click.ParamType):  # type: ignore[type-arg]  # generic since Click 8.4, and not before
    """The values of a parameter, from texts of a command line, and from texts and numbers of limpet.toml."""

    def __init__(
        self,
        kind: Any,
        parser: Callable[[str], Any] | None,
        limits: tuple[float | None, float | None] = (None, None),
        names: str = "",
    ) -> None:
        kind = bare(kind)
        self._names_of = names
        self.name = getattr(kind, "__name__", str(kind))
        self._least, self._greatest = limits
        self._choices = [str(choice.value) for choice in kind] if issubclass(kind, Enum) else []
        self.word = "|".join(self._choices) or ("N" if kind in (int, float) else "TEXT")
        self._parse = parser or (self._number if kind in (int, float) else kind)
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: Context | None) -> Any:
        """The value of a text. A default is a value already."""
        if param is not None and value == param.default and not isinstance(value, str):
            return value
        text = str(value)
        if self._choices and text not in self._choices:
            self.fail(f"{text!r} is not one of {', '.join(map(repr, self._choices))}", param, ctx)
        try:
            return self._parse(text)
        except ValueError:
            self.fail(f"{text!r} is not {_NOUNS.get(self._kind, 'a value')}", param, ctx)

    def _number(self, text: str) -> float:
        number = self._kind(text)
        least, greatest = self._least, self._greatest
        if math.isnan(number):
            raise ValueError
        if least is not None and number < least:
            raise BadParameter(f"{text} is less than {least:g}")
        if greatest is not None and number > greatest:
            raise BadParameter(f"{text} is greater than {greatest:g}")
        return cast(float, number)

    def shell_complete(self, ctx: Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """The choices that begin with the text; or the names of what is in the fleet."""
        from click.shell_completion import CompletionItem

        choices: Sequence[str] = self._choices
        if self._names_of:
            from limpet.cli.fleet_names import names_for

            choices = names_for(self._names_of, ctx.params.get("url"))
        return [CompletionItem(choice) for choice in choices if choice.startswith(incomplete)]


_NOUNS = {int: "a whole number", float: "a number"}


def _some(kind: Any) -> Any:
    kinds = [part for part in typing.get_args(kind) if part is not types.NoneType]
    return kinds[0] if typing.get_origin(kind) in (types.UnionType, typing.Union) else kind


def is_list(kind: Any) -> bool:
    """Whether it takes any number of values."""
    return typing.get_origin(_some(kind)) is list


def bare(kind: Any) -> Any:
    """The type of one value: without None, and of a list that of its items."""
    return typing.get_args(_some(kind))[0] if is_list(kind) else _some(kind)


class Command(click.Command):
    """A function as a command. The help is `limpet.cli.help`'s."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Parse the words of the command.   Raises: UsageError for a URL before a command that takes none."""
        if url_before(ctx) is not None and all(each.name != "url" for each in self.params):
            raise UsageError(f"{ctx.command_path} takes no --url", ctx)
        return super().parse_args(ctx, args)

    def get_help(self, ctx: Context) -> str:
        """The help page."""
        from limpet.cli.help import page

        return page(self, ctx)


class Group(click.Group):
    """A group of commands, which are made when they are typed: of functions, groups, or `module:attribute` texts.

    `panels`: the frames of its help, and the commands in each.
    """

    def __init__(
        self, name: str, inside: Mapping[str, tuple[Any, str]], panels: Mapping[str, Sequence[str]], **about: Any
    ) -> None:
        super().__init__(name, **about)
        self._inside = inside
        self._panels = panels

    def panels(self) -> Mapping[str, Sequence[str]]:
        """The frames of the help, and the commands in each; those of none come last."""
        framed = {name for names in self._panels.values() for name in names}
        return {**self._panels, "Commands": [name for name in self._inside if name not in framed]}

    def list_commands(self, ctx: Context | None) -> list[str]:
        """Their names, in the order of the help."""
        return [*self._inside]

    def summary(self, name: str) -> str:
        """The line of the help for a command. It is not loaded for that."""
        return self._inside[name][1]

    def get_command(self, ctx: Context | None, cmd_name: str) -> click.Command | None:
        """A command, which is loaded; None for a name that is not known."""
        made = self.commands.get(cmd_name)
        if made is None and cmd_name in self._inside:
            source = self._inside[cmd_name][0]
            if isinstance(source, str):
                module, _, attribute = source.partition(":")
                source = getattr(import_module(module), attribute)
            made = self.commands[cmd_name] = source if isinstance(source, click.Command) else command(source)
        return made

    def resolve_command(self, ctx: Context, args: list[str]) -> Any:
        """The command that the words name.   Raises: UsageError for none, with the name that is like it."""
        if args[0] not in self._inside and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise HintedUsageError(f"No such command {args[0]!r}", self._meant(ctx, args[0]), ctx)
        return super().resolve_command(ctx, args)

    def _meant(self, ctx: Context, word: str) -> str:
        """What an unknown command probably means: ours for one of another system, one of a group, or a similar one."""
        from limpet.kernel.foreign import ours_for
        from limpet.kernel.wording import nearest

        inside = {name: self.get_command(ctx, name) for name in (self._inside if ctx.parent is None else ())}
        groups = [name for name, each in inside.items() if isinstance(each, Group) and word in each.list_commands(None)]
        if ours := ours_for(word):
            return f"in Limpet: {ours}"
        if groups:
            return f"did you mean {' or '.join(f'`{ctx.command_path} {name} {word}`' for name in groups)}?"
        if word in COMMANDS:
            return f"did you mean `limpet {word}`?"
        near = nearest(word, self._inside)
        return f"did you mean `{ctx.command_path} {near}`?" if near else ""

    def get_help(self, ctx: Context) -> str:
        """The help page."""
        from limpet.cli.help import page

        return page(self, ctx)

    def shell_complete(self, ctx: Context, incomplete: str) -> list[Any]:
        """The commands that begin with the text, which are not loaded for that, and the group's own options."""
        from click.shell_completion import CompletionItem

        names = [name for name in self._inside if name.startswith(incomplete)]
        inside = [CompletionItem(name, help=self.summary(name)) for name in names]
        return inside + click.Command.shell_complete(self, ctx, incomplete)


def command_name(function: Callable[..., Any]) -> str:
    """A function's name, without the `_` behind a keyword of Python."""
    return function.__name__.rstrip("_").replace("_", "-")


def command(function: Callable[..., Any]) -> Command:
    """The command for a function."""
    said, _, examples = cleandoc(function.__doc__ or "").partition("\n\nExample")
    epilog = lines(*f"Example{examples}".replace("\n  ", " ").split("\n"))
    parameters, call = _bound(function)
    return Command(command_name(function), params=parameters, callback=call, help=said, epilog=epilog)


def _bound(function: Callable[..., Any]) -> tuple[list[click.Parameter], Callable[..., Any]]:
    """The parameters of a function, and the function as Click calls it.

    It gets the context, a list for a tuple, and the options that a dataclass declares as one value of that class.
    """
    parameters: list[click.Parameter] = []
    contexts: list[str] = []
    bundles: dict[str, list[str]] = {}
    hints, defaults = _declared(function)
    for name in [*defaults]:
        if hints[name] is Context:
            contexts.append(name)
        elif hasattr(hints[name], "__dataclass_fields__"):  # the help of `limpet` itself needs no `dataclasses`
            inner_hints, inner = _declared(hints[name])
            bundles[name] = [*inner]
            parameters += [_parameter(each, inner_hints[each], inner[each]) for each in inner]
            defaults |= inner
        else:
            parameters.append(_parameter(name, hints[name], defaults[name]))

    def call(**given: Any) -> Any:
        for name, value in given.items():
            if isinstance(value, tuple):
                given[name] = [*value] or (None if defaults[name] is None else [])
        for name, inner in bundles.items():
            given[name] = hints[name](**{each: given.pop(each) for each in inner})
        return function(**given, **dict.fromkeys(contexts, click.get_current_context()))

    return parameters, call


def _declared(source: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The types and the defaults of the parameters of a function, or of the fields of a dataclass."""
    hints = typing.get_type_hints(source, include_extras=True)
    return hints, {name: parameter.default for name, parameter in signature(source).parameters.items()}


def _parameter(name: str, hint: Any, default: Any) -> click.Parameter:
    kind, option = typing.get_args(hint)
    return cast(click.Parameter, option.parameter(name, kind, default))


def group(name: str, *inside: Any, help: str = "", epilog: str = "", call: Callable[..., Any] | None = None) -> Group:
    """A group of commands, in that order: functions, and groups. Without `help` it is the line in `COMMANDS`.
    A text is the title of the frame that shows those behind it.

    `call` takes the group's own options; the group then is a command, too.
    """
    table = {}
    panels: dict[str, list[str]] = {}
    for source in inside:
        if isinstance(source, str):
            panels[source] = []
            continue
        is_group = isinstance(source, Group)
        text = source.help if is_group else cleandoc(source.__doc__ or "")
        called = source.name if is_group else command_name(source)
        table[called] = (source, summary_of(text or ""))
        if panels:
            panels[[*panels][-1]].append(called)
    parameters, bound = _bound(call) if call is not None else ([], None)
    about: dict[str, Any] = {"params": parameters, "callback": bound, "invoke_without_command": bound is not None}
    about |= {"help": help or COMMANDS[name][1], "epilog": epilog, "no_args_is_help": bound is None}
    return Group(name, table, panels, **about)


def summary_of(text: str) -> str:
    """The first paragraph of a help text, on one line."""
    return " ".join(text.split("\n\n")[0].split())


def lines(*texts: str) -> str:
    """Paragraphs of help. A text that begins with `$` is a command to type, on the next line of its paragraph."""
    return "".join(f"\n{text}" if text.startswith("$") else f"\n\n{text}" for text in texts).strip()


def shown_names(parameter: click.Parameter) -> tuple[list[str], list[str]]:
    """The long and the short names of an option."""
    names = [*parameter.opts, *parameter.secondary_opts]
    return [name for name in names if name.startswith("--")], [name for name in names if not name.startswith("--")]


def colour() -> bool | None:
    """Whether help has colours: None if that depends on the terminal."""
    if os.environ.get("FORCE_COLOR"):
        return True
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None
