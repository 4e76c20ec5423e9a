"""Task functions: a plain function that can also be pushed, and run by a worker elsewhere.

A task's payload is the dict of its arguments by parameter name, defaults left out. `enrich.push("a.com")` and
`fleet.queue("enrich").push({"domain": "a.com"})` are the same.
"""

from __future__ import annotations

import inspect
import logging
import typing
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import datetime
from functools import update_wrapper
from typing import TYPE_CHECKING, Annotated, Any, Generic, ParamSpec, TypedDict, TypeVar, Unpack, overload

import msgspec

from limpet.events import Event, EventSink
from limpet.kernel import records
from limpet.kernel.answers import AnswersNames, answers_options, refuse_option
from limpet.kernel.errors import Invalid
from limpet.kernel.keys import batch_of, count_of, is_batch
from limpet.kernel.records import Name, Text
from limpet.kernel.user_code import UserCall
from limpet.kernel.wording import an
from limpet.queue.api import Fail, Pushed, Queue, Result, TaskHandle, check_follower, need
from limpet.queue.calls import gather
from limpet.queue.entry import GATHER_MAX
from limpet.queue.steps import in_order
from limpet.queue.value_types import ANYTHING, SUPPORTED, UnsupportedType, ValueType, shown_type, value_type
from limpet.worker.runner import Job, current_task
from limpet.worker.schedule import Cron

if TYPE_CHECKING:
    from limpet.app.fleet import Fleet

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
HookKind = typing.Literal["start", "done", "retry", "fail"]

_log = logging.getLogger("limpet.hooks")

AFTER = "limpet:after"
"""The payload's field by which a task is known that runs after others."""
FOLLOWED_MAX = 1000
"""How many entries a follower may wait for: their names are in its payload."""
PUSH_OPTIONS = ("id", "delay_s", "at")
METHOD = ("self", "cls")


class PolicyFields(TypedDict, total=False):
    """The fields of `Policy`, as keywords of `fleet.task` and `fleet.queue`."""

    max_attempts: int
    ttl_s: float
    timeout_s: float | None
    backoff_s: float
    backoff_max_s: float
    concurrency: int | None
    rate_per_s: float | None
    retention_s: float
    poll_s: float
    durable: bool


class Arguments:
    """Converts the arguments of one function to a payload and back, and knows the type of its result."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function = function
        self._signature = inspect.signature(function)
        self._parameters = self._signature.parameters
        self._catch_all = next((each for each in self._parameters.values() if each.kind is each.VAR_KEYWORD), None)
        self.text = f"{name}({', '.join(map(_shown, self._parameters.values()))})"
        self.required = [
            name
            for name, each in self._parameters.items()
            if each.default is each.empty and each is not self._catch_all
        ]
        """The parameters that a payload must name."""
        self._refuse_what_cannot_work()
        self._kinds: dict[str, ValueType] = {}
        self._others: ValueType | None = None
        """The type of what a catch-all takes."""
        self.returns = ANYTHING
        self._settled = self._read_types()

    def pack(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The payload of a call with these arguments.

        Raises: Invalid for arguments that the function does not take, that JSON cannot hold, or that are not of the
        annotated type: a worker could not run it either.
        """
        try:
            given = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise Invalid(f"these arguments do not fit {self.text}: {error}", hint=self._hint_at(kwargs)) from None
        if self._catch_all is not None:
            given |= given.pop(self._catch_all.name, {})
        if not self._settled:
            self.settle()
        return {name: self._plain(name, value) for name, value in given.items()}

    def _hint_at(self, kwargs: Mapping[str, Any]) -> str:
        """How to pass the keywords that the function does not take."""
        from limpet.kernel.foreign import ours_for

        unknown = [name for name in kwargs if name not in self._parameters]
        if options := ", ".join(f"{name}=" for name in unknown if name in PUSH_OPTIONS):
            return f"pass {options} to using(): task.using({options}...).push(...)"
        ours = next((ours for name in unknown if (ours := ours_for(f"{name}=", PUSH_OPTIONS))), None)
        return f"in Limpet: {ours}" if ours else "push it as you would call it"

    def unpack(self, payload: Any) -> dict[str, Any]:
        """The arguments in a payload, as their annotated types.   Raises: Fail, naming the field that does not fit."""
        if not isinstance(payload, dict):
            raise Fail(f"the payload is {an(type(payload).__name__)}, not an object with the arguments of {self.text}")
        for name in self.required:
            if name not in payload:
                raise Fail(f"the payload has no field {name!r}, which {self.text} needs")
        if not self._settled:
            self.settle()
        arguments = {}
        for name, value in payload.items():
            kind = self._kinds.get(name, self._others)
            if kind is None:
                raise Fail(f"the payload has a field {name!r}, which {self.text} does not take")
            try:
                arguments[name] = value if kind.build is None else kind.build(value)
            except msgspec.ValidationError as error:
                raise Fail(f"the payload's field {name!r} does not fit {self.text}: {error}") from None
        return arguments

    def _refuse_what_cannot_work(self) -> None:
        function = self._function
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise Invalid(f"{self.text} yields, so a worker could not run it", hint="a task returns, or pushes tasks")
        for number, (name, each) in enumerate(self._parameters.items()):
            if each.kind in (each.VAR_POSITIONAL, each.POSITIONAL_ONLY):
                raise Invalid(
                    f"{self.text} has arguments without a name, and a payload names each",
                    hint="take a list instead of *args, and leave out the `/`",
                )
            if number == 0 and name in METHOD:
                raise Invalid(f"{self.text} is a method, and a payload holds no {name!r}", hint="use a plain function")

    def _plain(self, name: str, value: Any) -> Any:
        kind = self._kinds.get(name, self._others) or ANYTHING
        try:
            plain = records.builtins(value)
            if kind.build is not None:
                kind.build(plain)
            return plain
        except msgspec.ValidationError as error:
            raise Invalid(f"argument {name!r} does not fit {self.text}: {error}") from None
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise Invalid(
                f"argument {name!r} of {self.text} cannot be written as JSON: {error}", hint=SUPPORTED
            ) from None

    def built_result(self, result: Result) -> Result:
        """The result of a task of this function, with its value built by the return type."""
        self.settle()
        return self.returns.built_result(result)

    def settle(self) -> None:
        """Read the annotations that named, at decoration, something defined further down.

        One that is still not defined, as under `if TYPE_CHECKING`, takes every value.
        Raises: Invalid for one that cannot be stored.
        """
        if not self._settled:
            self._read_types()
            self._settled = True

    def _read_types(self) -> bool:
        """Whether all names in the annotations are defined.   Raises: Invalid."""
        read = {
            name: self._type_of(f"parameter {name!r} of {self.text}", each.annotation)
            for name, each in self._parameters.items()
        }
        note = self._signature.return_annotation
        returns = self._type_of(f"the result of {self.text} -> {_noted(note)}", note)
        kinds = {name: kind or ANYTHING for name, kind in read.items()}
        self._others = None if self._catch_all is None else kinds.pop(self._catch_all.name)
        self._kinds, self.returns = kinds, returns or ANYTHING
        return None not in (*read.values(), returns)

    def _type_of(self, where: str, note: Any) -> ValueType | None:
        """None if a name in the annotation is not defined."""
        try:
            return value_type(note, self._function)
        except NameError:
            return None
        except UnsupportedType as error:
            raise Invalid(f"{where} cannot be stored: {error}", hint=error.hint) from None


def _noted(note: Any) -> str:
    """An annotation as it stands in the source, without the quotes of a postponed one."""
    return note if isinstance(note, str) else shown_type(note)


def _shown(parameter: inspect.Parameter) -> str:
    """The parameter as it stands in the source."""
    note = parameter.annotation
    kind = "" if note is parameter.empty else f": {_noted(note)}"
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    stars = "*" * (parameter.kind is parameter.VAR_POSITIONAL) + "**" * (parameter.kind is parameter.VAR_KEYWORD)
    return f"{stars}{parameter.name}{kind}{default}"


@dataclass(frozen=True, slots=True)
class TaskRun:
    """One run of a task, as hooks see it.

    `payload` holds the arguments, `result` what the function returned, `exception` what it raised and `error` the same
    as one line; each is None where it does not apply. `seconds` is how long the function ran.
    """

    queue: str
    id: str
    attempt: int
    payload: Any
    seconds: float = 0.0
    result: Any = None
    error: str | None = None
    exception: BaseException | None = None


Hook = Callable[[TaskRun], object]


@dataclass(slots=True)
class _Running:
    """The task that a thread runs, until its end event is emitted. A `with` block notes what is raised in it."""

    id: str
    payload: Any
    result: Any = None
    exception: BaseException | None = None

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.exception = error


_running: ContextVar[_Running | None] = ContextVar("limpet_running", default=None)


class Hooks:
    """The functions that a fleet's workers call around each task. It is an `EventSink`: events say how tasks ended."""

    def __init__(self, events: EventSink | None) -> None:
        self.events = events
        """Where every event goes first."""
        self._hooks: dict[HookKind, list[Hook]] = {"start": [], "done": [], "retry": [], "fail": []}

    def __bool__(self) -> bool:
        return any(self._hooks.values())

    def add(self, kind: HookKind, hook: Hook) -> Hook:
        """Call `hook` from now on.   Raises: Invalid for something that cannot be called."""
        if not callable(hook):
            raise Invalid(f"a hook is a function, not {hook!r}", hint=f"write @fleet.on_{kind}, without parentheses")
        self._hooks[kind].append(hook)
        return hook

    def run(self, kind: HookKind, run: TaskRun) -> None:
        """Call the hooks of a kind. What they raise is logged."""
        for hook in self._hooks[kind]:
            with UserCall() as call:
                hook(run)
            if call.error is not None:
                name = getattr(hook, "__qualname__", repr(hook))
                _log.error("on_%s hook %s raised", kind, name, exc_info=call.error)

    def emit(self, event: Event) -> None:
        """Call the hooks for the end of a task that this thread ran."""
        if self.events is not None:
            self.events.emit(event)
        fields, ran = event.fields, _running.get()
        kinds: dict[str, HookKind] = {"done": "done", "retried": "retry", "failed": "fail"}
        kind = kinds.get(fields.get("outcome", ""))
        if kind is None or ran is None or ran.id != fields["task"]:
            return
        run = TaskRun(fields["queue"], ran.id, fields["attempt"], ran.payload, fields["took_s"])
        result = ran.result if kind == "done" else None
        self.run(kind, replace(run, result=result, error=fields.get("error"), exception=ran.exception))

    def flush(self) -> None:
        if self.events is not None:
            self.events.flush()

    def close(self) -> None:
        if self.events is not None:
            self.events.close()


@dataclass(frozen=True, slots=True)
class TaskPush(AnswersNames, Generic[P, T]):
    """A task function with the id and the time of the tasks that it pushes; `TaskFunction.using` makes it."""

    task: TaskFunction[P, Any]
    id: str | int | None
    delay_s: float
    at: datetime | None

    def push(self, *args: P.args, **kwargs: P.kwargs) -> Pushed[T]:
        """Push a task with these arguments.   Raises: as `TaskFunction.push`."""
        payload = self.task.arguments.pack(args, kwargs)
        return self.task.push_payload(payload, id=self.id, delay_s=self.delay_s, at=self.at)

    def push_async(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Pushed[T]]:
        """`push`, for coroutines: it does not block the event loop."""
        return in_order(self.push, *args, **kwargs)


class TaskFunction(AnswersNames, Generic[P, R]):
    """A function and its queue. Calling it runs the function in this thread; `push` has a worker run it."""

    __name__: str

    def __init__(
        self,
        function: Callable[P, R],
        queue: Queue,
        tasks: Tasks,
        *,
        cron: str | None = None,
        cron_zone: str | None = None,
    ) -> None:
        self.function = function
        self.queue = queue
        self.arguments = Arguments(function, queue.name)
        queue.result_type = self.arguments
        if cron is None and cron_zone is not None:
            raise Invalid(f"cron_zone={cron_zone!r} has no cron", hint='give both: cron="0 3 * * *"')
        self.cron = Cron(cron, cron_zone) if cron is not None else None
        self._tasks = tasks
        if queue.policy.durable:
            need(queue.name, queue.provider, queue.supports, "steps")
        if self.cron is not None:
            need(queue.name, queue.provider, queue.supports, "ids")
            if self.arguments.required:
                raise Invalid(f"cron pushes {self.arguments.text} without arguments", hint="give each one a default")
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself. No task is made."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"TaskFunction({self.arguments.text})"

    @property
    def name(self) -> str:
        """The name of the task and of its queue."""
        return self.queue.name

    @property
    def job(self) -> Job:
        """What a worker needs to run it. Hooks that are defined later are not called.

        Raises: Invalid for an annotation that cannot be stored, and named something defined after the task.
        """
        fleet, hooks = self._tasks.fleet, self._tasks.hooks
        self.arguments.settle()
        returns = self.arguments.returns
        if not hooks:
            return Job(self.queue, self.handle, self.cron, fleet.events, fleet.presence, returns)
        return Job(self.queue, self._handle_hooked, self.cron, hooks, fleet.presence, returns)

    def check(self) -> None:
        """Connect to the fleet now, instead of at first use.   Raises, Cost: see `Fleet.check`."""
        self._tasks.fleet.check()

    @overload
    def push(self: TaskFunction[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> Pushed[T]: ...

    @overload
    def push(self: TaskFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> Pushed[T]: ...

    def push(self: TaskFunction[P, Any], *args: P.args, **kwargs: P.kwargs) -> Pushed[Any]:
        """Push a task with these arguments: a worker runs it at least once. `using` gives the task an id or a time.

        Raises: Invalid for arguments that do not fit, before anything is pushed; else see `Queue.push`.
        """
        return TaskPush(self, None, 0.0, None).push(*args, **kwargs)

    @overload
    def push_async(
        self: TaskFunction[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, Pushed[T]]: ...

    @overload
    def push_async(self: TaskFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Pushed[T]]: ...

    def push_async(self: TaskFunction[P, Any], *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Pushed[Any]]:
        """`push`, for coroutines: it does not block the event loop."""
        return self.using().push_async(*args, **kwargs)

    @overload
    def using(
        self: TaskFunction[P, Coroutine[Any, Any, T]],
        *,
        id: str | int | None = None,
        delay_s: float = 0.0,
        at: datetime | None = None,
    ) -> TaskPush[P, T]: ...

    @overload
    def using(
        self: TaskFunction[P, T], *, id: str | int | None = None, delay_s: float = 0.0, at: datetime | None = None
    ) -> TaskPush[P, T]: ...

    @answers_options
    def using(
        self: TaskFunction[P, Any], *, id: str | int | None = None, delay_s: float = 0.0, at: datetime | None = None
    ) -> TaskPush[P, Any]:
        """`enrich.using(id="a.com", delay_s=60).push("a.com")`: how a task is pushed, beside its arguments.

        With an `id`, at most one task of that id exists. `delay_s` is how long it waits before it may run; `at` is the
        time from which on it may run, by this machine's clock.
        Raises: Invalid for a time without a zone, or for both `delay_s` and `at`.
        """
        if at is not None and delay_s:
            raise Invalid("delay_s and at are two times", hint="give one of them")
        if at is not None and at.tzinfo is None:
            raise Invalid(f"the time {at} has no zone", hint="write datetime(..., tzinfo=UTC), or use delay_s")
        return TaskPush(self, id, delay_s, at)

    def push_payload(
        self, payload: dict[str, Any], *, id: str | int | None, delay_s: float, at: datetime | None
    ) -> Pushed[Any]:
        """Push a payload that `arguments.pack` made."""
        if at is not None:
            delay_s = max(0.0, (at - self._tasks.fleet.runtime.wall()).total_seconds())
        run_at_once = self._tasks.run_at_once
        pushed = self.queue.push(payload, id=id, delay_s=0.0 if run_at_once else delay_s)
        if run_at_once:
            run_at_once(self)
        return pushed

    @overload
    def push_many(
        self: TaskFunction[P, Coroutine[Any, Any, T]],
        calls: Iterable[tuple[Any, ...] | dict[str, Any]],
        *,
        batch: int = 100,
        id: str | int | None = None,
        then: TaskFunction[..., Any] | None = None,
    ) -> list[TaskHandle[T]]: ...

    @overload
    def push_many(
        self: TaskFunction[P, T],
        calls: Iterable[tuple[Any, ...] | dict[str, Any]],
        *,
        batch: int = 100,
        id: str | int | None = None,
        then: TaskFunction[..., Any] | None = None,
    ) -> list[TaskHandle[T]]: ...

    @answers_options
    def push_many(
        self: TaskFunction[P, Any],
        calls: Iterable[tuple[Any, ...] | dict[str, Any]],
        *,
        batch: int = 100,
        id: str | int | None = None,
        then: TaskFunction[..., Any] | None = None,
    ) -> list[TaskHandle[Any]]:
        """Push a task for each call: a tuple of arguments, or a dict of named ones. Returns their ids, in order.

        Tasks are packed `batch` to an entry, which costs a fraction of single pushes. With an `id`, the same call made
        again pushes nothing. `then` is called with the list of their results when all have ended: see `Pushed.then`.
        Raises: Invalid if any call does not fit, before anything is pushed; else see `Queue.push_many`.
        """
        if then is not None:
            check_follower(then)
        payloads = [self._packed(n, call) for n, call in enumerate(calls)]
        if then is not None and (len(payloads) > GATHER_MAX or len(payloads) > FOLLOWED_MAX * max(batch, 1)):
            raise Invalid(
                f"a task can follow {GATHER_MAX} tasks in {FOLLOWED_MAX} batches at most, not {len(payloads)}",
                hint=f"use a larger batch= than {batch}, or push in parts",
            )
        ids = list(self.queue.push_many(payloads, batch=batch, id=id))
        if then is not None:
            then.push_after(ids, many=True, id=None if id is None else f"{id}.then")
        if self._tasks.run_at_once:
            self._tasks.run_at_once(self)
        return ids

    def push_after(self, tasks: Sequence[TaskHandle], *, many: bool = False, id: str | None = None) -> Pushed:
        """Push a task that calls the function when these have ended: with their list of results if `many`, else with
        one `Result`.   Raises: Invalid for more than one parameter without a default.   Cost: 1 PUT.
        """
        need(self.queue.name, self.queue.provider, self.queue.supports, "steps")
        if len(self.arguments.required) > 1:
            raise Invalid(f"{self.arguments.text} is called with results alone", hint="give the others a default")
        if not tasks:
            raise Invalid("there is nothing to wait for")
        pushed = self.queue.push({AFTER: {"tasks": _shortened(tasks), "many": many}}, id=id)
        if self._tasks.run_at_once:
            self._tasks.run_at_once(self)
        return pushed

    def _handles(self, queue: str, name: str) -> list[TaskHandle]:
        """The handles of a task, or of all tasks of a batch."""
        names = [f"{name}.{n}" for n in range(count_of(name))] if is_batch(name) else [name]
        handles: list[TaskHandle] = [*map(TaskHandle, names)]
        task = self._tasks.get(queue)  # it knows the type of its results
        opened = self._tasks.fleet.queue(queue) if task is None else task.queue
        for handle in handles:
            handle.queue = opened
        return handles

    def _follow(self, payload: Any) -> Any:
        try:
            after = records.converted(payload, _FollowerRecord)
            handles = [handle for queue, name in after.tasks for handle in self._handles(queue, name)]
        except (msgspec.ValidationError, ValueError) as error:
            raise Fail(f"the payload does not say what to wait for: {error}") from None
        ends = gather(handles)
        return self.function(ends if after.many else ends[0])  # type: ignore[call-arg,arg-type]  # its one parameter

    def handle(self, payload: Any) -> Any:
        """Run it as a worker does; a coroutine function's coroutine.   Raises: Fail for a payload that does not fit."""
        if isinstance(payload, dict) and AFTER in payload:
            return self._follow(payload[AFTER])
        named = self.arguments.unpack(payload)
        return self.function(**named)  # type: ignore[call-arg]  # `unpack` has compared them with its parameters

    def _handle_hooked(self, payload: Any) -> Any:
        task = current_task()
        ran = _Running(task.id, payload)
        _running.set(ran)
        self._tasks.hooks.run("start", TaskRun(task.queue, task.id, task.attempt, payload))
        with ran:
            ran.result = self.handle(payload)
        return _awaited(ran) if inspect.isawaitable(ran.result) else ran.result

    def _packed(self, n: int, call: Any) -> dict[str, Any]:
        match call:
            case tuple():
                return self.arguments.pack(call, {})
            case dict():
                return self.arguments.pack((), call)
        raise Invalid(
            f"call {n} of push_many is {an(type(call).__name__)}", hint='write ("a.com",) or {"domain": "a.com"}'
        )


class _FollowerRecord(msgspec.Struct):
    """What a follower waits for: queues and ids, or the names of whole batches."""

    tasks: Annotated[list[tuple[Name, Text]], msgspec.Meta(max_length=GATHER_MAX)]
    many: bool


def _shortened(tasks: Sequence[TaskHandle]) -> list[tuple[str, str]]:
    """Queue and id of each task; where all tasks of a batch follow each other, that of the batch."""
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(tasks):
        task = tasks[at]
        part = batch_of(task)
        count = count_of(part[0]) if part else 1
        whole = part is not None and [*tasks[at : at + count]] == [f"{part[0]}.{n}" for n in range(count)]
        found.append((task.queue.name, part[0] if part and whole else str(task)))
        at += count if whole else 1
    return found


async def _awaited(ran: _Running) -> Any:
    with ran:
        ran.result = await ran.result
    return ran.result


class Tasks:
    """The task functions of one fleet, in the order of their definition, and its hooks."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.hooks = Hooks(fleet.events)
        self._defined: dict[str, TaskFunction[..., Any]] = {}
        self.run_at_once: Callable[[TaskFunction[..., Any]], None] | None = None
        """What follows each push of a task function; `limpet.testing.eager` sets it."""

    def __iter__(self) -> Iterator[TaskFunction[..., Any]]:
        return iter(self._defined.values())

    def __len__(self) -> int:
        return len(self._defined)

    def get(self, name: str) -> TaskFunction[..., Any] | None:
        """The task of that name, if one is defined."""
        return self._defined.get(name)

    def define(
        self, name: str | None, *, cron: str | None, cron_zone: str | None = None, **policy: Unpack[PolicyFields]
    ) -> Callable[[Callable[P, R]], TaskFunction[P, R]]:
        """The decorator behind `fleet.task`; without a name the task has its function's.

        Raises, at decoration: Invalid for a function that cannot be a task, or a name that another function has.
        """
        if name is not None and not isinstance(name, str):
            raise Invalid(f"a task's name is a string, not {name!r}", hint="write @fleet.task(), with parentheses")

        for option in sorted(policy.keys() - PolicyFields.__annotations__.keys()):
            refuse_option(option, [*PolicyFields.__annotations__, "name", "cron", "cron_zone"], "a task")

        def decorate(function: Callable[P, R]) -> TaskFunction[P, R]:
            called = name if name is not None else getattr(function, "__name__", "")
            if not called or called == "<lambda>":
                raise Invalid(f"{function!r} has no name", hint='give the task one: fleet.task("name")')
            before = self._defined.get(called)
            if before is not None and _place(before.function) != _place(function):
                raise Invalid(
                    f"two functions are named task {called!r}: {_place(before.function)} and {_place(function)}",
                    hint="give one of them another name",
                )
            queue = self.fleet.queue(called, **policy)
            task = TaskFunction(function, queue, self, cron=cron, cron_zone=cron_zone)
            self._defined[called] = task
            return task

        return decorate


def _place(function: Callable[..., Any]) -> str:
    """Where a function is defined. A notebook that runs a cell again defines the same place again."""
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', '?')}"
