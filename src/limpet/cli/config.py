"""`limpet.toml`: the fleet, profiles, worker definitions and defaults of options, for the commands typed beside it.

    url = "s3://acme/prod"              # the fleet, where neither --url nor LIMPET_URL names one

    [profiles.staging]                  # limpet --profile staging ..., or LIMPET_PROFILE
    url = "s3://acme/staging"
    env = {AWS_PROFILE = "staging"}     # variables that are not set already

    [workers.bulk]                      # limpet work bulk
    target = "app:fleet"
    queue = ["bulk", "mail"]
    processes = 4

    [defaults.work]                     # options of a command, by their names
    grace = 20

It is read from the current directory, or from LIMPET_CONFIG. What is typed counts more than the environment, that more
than a profile, and that more than the rest of the file. Only the command line reads it: `limpet.open()` does not.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from limpet.cli import COMMANDS, CONFIG, CONFIG_VARIABLE, PROFILE_VARIABLE, place_of_command, run
from limpet.kernel.errors import Invalid
from limpet.kernel.wording import listed, nearest

URL_VARIABLE = "LIMPET_URL"
BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class ConfiguredCommand:
    """A command line after limpet.toml was applied: its words, and the defaults of options by command."""

    words: Sequence[str]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    path: str = ""


def run_configured(words: Sequence[str]) -> None:
    """Run a command line as limpet.toml says.   Raises: Invalid, as `configured`."""
    found = configured(words)
    _demand_known(found.path, "defaults", found.defaults, COMMANDS)
    run(found.words, lambda typed, parser: default_map(typed, parser, found))


def configured(words: Sequence[str]) -> ConfiguredCommand:
    """Read limpet.toml, if there is one: set the fleet and the profile's variables, and find the defaults.

    Raises: Invalid, in one line, for a file that is not TOML, or that says something that is not known.
    """
    words, profile = _profile(words)
    path = os.environ.get(CONFIG_VARIABLE) or CONFIG
    if not os.path.isfile(path):
        if os.environ.get(CONFIG_VARIABLE):
            raise Invalid(f"there is no file {path}", hint=f"{CONFIG_VARIABLE} names it")
        if profile:
            raise Invalid(
                f"there is no profile {profile!r}, for there is no {CONFIG} here", hint="see docs/run/look.md"
            )
        return ConfiguredCommand(words)
    file = _read(path)
    _demand_known(path, "", file, ("url", "profiles", "workers", "defaults"))
    chosen = _part(path, file, "profiles", profile) if profile else {}
    _demand_known(path, f"profiles.{profile}", chosen, ("url", "env"))
    for name, value in _table(path, "env", chosen.get("env", {})).items():
        os.environ.setdefault(name, _text(path, f"env.{name}", value))
    url = chosen.get("url", file.get("url"))
    if url is not None and not os.environ.get(URL_VARIABLE):
        os.environ[URL_VARIABLE] = _url(path, _text(path, "url", url))
    defaults = dict(_table(path, "defaults", file.get("defaults", {})))
    workers = _table(path, "workers", file.get("workers", {}))
    at = place_of_command(words) + 1
    if [*words[at - 1 : at]] == ["work"] and len(words) > at and words[at] in workers:
        worker = dict(_table(path, f"workers.{words[at]}", workers[words[at]]))
        target = _text(path, f"workers.{words[at]}.target", worker.pop("target", ""))
        defaults["work"] = {**_table(path, "defaults.work", defaults.get("work", {})), **worker}
        words = [*words[:at], *([target] if target else []), *words[at + 1 :]]
    return ConfiguredCommand(words, defaults, path)


def default_map(typed: str, parser: Any, config: ConfiguredCommand) -> dict[str, Any]:
    """The defaults for the command that is typed, by the names of its parameters; for `Context.default_map`.

    Raises: Invalid for a command or an option that there is not.
    """
    command = parser.get_command(None, typed) if typed in config.defaults else None
    if command is None:
        return {}
    return {typed: _of_command(command, config.defaults[typed], f"defaults.{typed}", config.path)}


def _of_command(command: Any, given: Any, where: str, path: str) -> dict[str, Any]:
    options = {
        text.lstrip("-"): each.name for each in command.params for text in each.opts if each.param_type_name == "option"
    }
    inside = command.list_commands(None) if hasattr(command, "list_commands") else ()
    table = _table(path, where, given)
    _demand_known(path, where, table, {*options, *inside} - {"help"})
    return {
        options.get(name, name): _of_command(command.get_command(None, name), value, f"{where}.{name}", path)
        if name in inside
        else value
        for name, value in table.items()
    }


def _profile(words: Sequence[str]) -> tuple[list[str], str]:
    """The words without `--profile NAME` before the command, and the profile that they or the environment name."""
    left, name = [*words], os.environ.get(PROFILE_VARIABLE, "")
    at = next((n for n in range(place_of_command(left)) if left[n].startswith("--profile")), len(left))
    if at < len(left) and left[at] == "--profile" and at + 1 < len(left):
        name = left[at + 1]
        del left[at : at + 2]
    elif at < len(left) and left[at].startswith("--profile="):
        name = left.pop(at).partition("=")[2]
    return left, name


def _read(path: str) -> dict[str, Any]:
    import tomllib

    try:
        with open(path, "rb") as file:
            data = file.read(BYTES_MAX + 1)
        if len(data) > BYTES_MAX:
            raise Invalid(f"{path} has more than {BYTES_MAX} bytes")
        return tomllib.loads(data.decode())
    except OSError as error:
        raise Invalid(f"cannot read {path}: {error.strerror}", hint="check your rights to it") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        said = " ".join(str(error).split())
        raise Invalid(f"{path} is not TOML: {said}", hint="correct it, or move it away") from None


def _part(path: str, file: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    parts = _table(path, kind, file.get(kind, {}))
    if name not in parts:
        raise Invalid(f"{path} has no profile {name!r}", hint=listed(parts) or f"write [{kind}.{name}]")
    return _table(path, f"{kind}.{name}", parts[name])


def _demand_known(path: str, where: str, given: Mapping[str, Any], known: Collection[str]) -> None:
    for name in given:
        if name not in known:
            near = nearest(name, known)
            place = f" in [{where}]" if where else ""
            hint = f"did you mean {near!r}?" if near else listed(sorted(known))
            raise Invalid(f"{path}: nothing is called {name!r}{place}", hint=hint)


def _table(path: str, where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Invalid(f"{path}: {where} is not a table", hint=f"write [{where}], and name = value below it")
    return value


def _text(path: str, where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise Invalid(f"{path}: {where} is not a text", hint='write it in quotes: "..."')
    return value


def _url(path: str, url: str) -> str:
    """A relative path is below the file, wherever the command is typed."""
    if "://" in url or url.startswith("~") or os.path.isabs(url):
        return url
    return os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(path)), url))
