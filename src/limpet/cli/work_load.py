"""From what was typed to what is worked on: importing a user's module, and finding tasks in it."""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from types import ModuleType, TracebackType
from typing import Any

from limpet.app import Fleet
from limpet.app.tasks import TaskFunction
from limpet.cli.shared import existing
from limpet.cli.work_wire import Order
from limpet.errors import Held, Invalid, LimpetError
from limpet.queue.work import Job
from limpet.queue.work.judge import Caught, one_line

NOTHING_CLAIMED = "nothing was claimed"


def jobs_of(order: Order) -> list[Job]:
    """The jobs that an order names, those of `order.queues` in that order.

    Raises: Invalid, with one line that says what is wrong with the target, its module, or what was found there.
    """
    tasks = _with_handler(order) if order.handler is not None else _of_module(order)
    for task in tasks:
        if task.queue.provider == "memory":
            raise Invalid(
                f"task {task.name!r} lives in memory://, which no other process can see",
                hint="open the fleet at a directory or a bucket; for tests there is limpet.testing",
            )
    return [task.job for task in tasks]


def _with_handler(order: Order) -> list[TaskFunction[..., Any]]:
    assert order.handler is not None
    names = list(dict.fromkeys([*([order.target] if order.target else []), *order.queues]))
    if not names:
        raise Invalid("no queue was named", hint="limpet work QUEUE --handler pkg.mod:function --url URL")
    found = resolve(order.handler)
    if not callable(found):
        raise Invalid(f"{order.handler} is a {type(found).__name__}, which cannot be called", hint="name a function")
    fleet = existing(order.url)
    if isinstance(found, TaskFunction):
        policy = asdict(found.queue.policy)
        return [TaskFunction(found.function, fleet.queue(name, **policy), events=fleet.events) for name in names]
    return [TaskFunction(found, fleet.queue(name), events=fleet.events) for name in names]


def _of_module(order: Order) -> list[TaskFunction[..., Any]]:
    if order.target is None:
        raise Invalid("nothing was named to work on", hint="limpet work app:fleet, where app.py has a fleet")
    found = resolve(order.target)
    match found:
        case Fleet():
            tasks = list(found.tasks)
        case TaskFunction():
            tasks = [found]
        case _:
            raise Invalid(
                f"{order.target} is a {type(found).__name__}, neither a fleet nor a task",
                hint="name what limpet.open() or @fleet.task() gave; or a queue, with --handler",
            )
    if not tasks:
        raise Invalid(
            f"{order.target} has no tasks", hint="define one with @fleet.task(), in a module that this one imports"
        )
    chosen = _chosen(tasks, order) if order.queues else tasks
    chosen[0].check()
    return chosen


def _chosen(tasks: Sequence[TaskFunction[..., Any]], order: Order) -> list[TaskFunction[..., Any]]:
    by_name = {task.name: task for task in tasks}
    for name in order.queues:
        if name not in by_name:
            raise Invalid(f"{order.target} has no task {name!r}", hint=f"it has {', '.join(by_name)}")
    return [by_name[name] for name in dict.fromkeys(order.queues)]


def resolve(text: str) -> Any:
    """What `module:attribute` names; the module is looked for in the current directory first.

    Raises: Invalid; and what the module itself raises of Limpet's errors.
    """
    name, colon, path = text.partition(":")
    if name.endswith(".py") or "/" in name:
        dotted = name.removesuffix(".py").removeprefix("./").replace("/", ".")
        raise Invalid(f"{name} is a file, not a module", hint=f"write {dotted}:{path or 'fleet'}")
    if not (name and colon and path):
        raise Invalid(
            f"{text!r} names no attribute of a module",
            hint="write module:attribute, such as app:fleet; or a queue's name, with --handler",
        )
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    found: Any = _import(name)
    module = found
    for part in path.split("."):
        if not hasattr(found, part):
            raise Invalid(f"module {name!r} has no {path!r}", hint=_offer(name, module))
        found = getattr(found, part)
    return found


def _import(name: str) -> ModuleType:
    with Caught() as caught:
        return importlib.import_module(name)
    error = caught.error
    assert error is not None
    if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
        raise Invalid(
            f"there is no module {error.name!r}", hint=f"run limpet where it can be imported; this is {os.getcwd()}"
        )
    place = _place(error)
    if isinstance(error, LimpetError) and not isinstance(error, Held):
        raise type(error)(f"{name} cannot be imported: {error}{place}", hint=error.hint)
    raise Invalid(f"{name} cannot be imported: {one_line(error)}{place}", hint=f"correct it; {NOTHING_CLAIMED}")


def _place(error: BaseException) -> str:
    """The innermost line of the user's own code that led to the error."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({_short(error.filename)}:{error.lineno})"
    lines = [(frame.tb_frame.f_code.co_filename, frame.tb_lineno) for frame in _frames(error.__traceback__)]
    theirs = [(file, line) for file, line in lines if _is_users(file)]
    return f" ({_short(theirs[-1][0])}:{theirs[-1][1]})" if theirs else ""


def _frames(traceback: TracebackType | None) -> Iterable[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _is_users(file: str) -> bool:
    """Whether a file belongs neither to Python, nor to a package that was installed, nor to Limpet."""
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    paths = sysconfig.get_paths()
    others = (ours, *(paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")))
    return not file.startswith(("<", *(f"{other}{os.sep}" for other in others)))


def _short(file: str) -> str:
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative


def _offer(name: str, module: ModuleType) -> str:
    known = [attribute for attribute, value in vars(module).items() if isinstance(value, (Fleet, TaskFunction))]
    return f"it has {', '.join(f'{name}:{each}' for each in known)}" if known else "it has no fleet and no task"
