"""Task functions: what they accept, what they refuse, and how arguments travel."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import limpet
from limpet import Fleet, Invalid, Policy, testing
from limpet.app.tasks import PolicyFields, TaskFunction, TaskRun

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForTypeCheckers


class Colour(Enum):
    RED = "red"


@dataclass
class Site:
    domain: str
    seen: datetime | None = None


class Point(msgspec.Struct):
    x: int
    y: int


@pytest.fixture
def fleet() -> Fleet:
    return limpet.open("memory://")


Enrich = TaskFunction[..., None]


@pytest.fixture
def enrich(fleet: Fleet) -> Enrich:
    @fleet.task()
    def enrich(domain: str, n: int = 1) -> None: ...

    return enrich


def payloads(task: TaskFunction[..., Any]) -> list[Any]:
    return [each.payload for each in task.queue.peek(100)]


def test_stays_a_plain_function(fleet: Fleet) -> None:
    @fleet.task("enrich", max_attempts=2)
    def enrich(domain: str, n: int = 1) -> str:
        """Look it up."""
        return domain * n

    assert enrich("ab", n=2) == "abab"
    assert (enrich.__name__, enrich.__doc__, enrich.name) == ("enrich", "Look it up.", "enrich")
    assert enrich.queue.policy.max_attempts == 2
    assert enrich.queue.stats().pending == 0
    with pytest.raises(TypeError):
        enrich()  # type: ignore[call-arg]


def test_an_async_one_stays_async(fleet: Fleet) -> None:
    @fleet.task()
    async def double(n: int) -> int:
        return 2 * n

    assert asyncio.run(double(4)) == 8
    assert double.name == "double"


def test_a_push_is_the_dict_of_its_arguments(fleet: Fleet) -> None:
    @fleet.task()
    def enrich(domain: str, deep: bool = False, *, tries: int = 3) -> None: ...

    enrich.using(id="a").push("a.com")
    enrich.using(id="b").push(domain="a.com", tries=5)
    fleet.queue("enrich").push({"domain": "a.com"}, id="c")
    by_id = {each.id: each.payload for each in enrich.queue.peek()}
    assert by_id == {"a": {"domain": "a.com"}, "b": {"domain": "a.com", "tries": 5}, "c": {"domain": "a.com"}}


def test_an_id_is_taken_once(enrich: Enrich) -> None:
    assert enrich.using(id="x").push("a.com") == limpet.Pushed("x", True)
    assert enrich.using(id="x").push("b.com") == limpet.Pushed("x", False)
    assert payloads(enrich) == [{"domain": "a.com"}]


def test_a_delayed_push_waits(enrich: Enrich) -> None:
    enrich.using(delay_s=60).push("a.com")
    assert (enrich.queue.stats().pending, enrich.queue.stats().scheduled) == (0, 1)


def test_push_many_takes_tuples_and_dicts(enrich: Enrich) -> None:
    ids = enrich.push_many([("a", 2), {"domain": "b"}, ("c",)], batch=2)
    assert len(set(ids)) == 3
    by_id = {each.id: each.payload for each in enrich.queue.peek()}
    assert [by_id[id_] for id_ in ids] == [{"domain": "a", "n": 2}, {"domain": "b"}, {"domain": "c"}]
    assert enrich.push_many([]) == []


def test_rich_types_travel_both_ways(fleet: Fleet) -> None:
    @fleet.task()
    def take(
        site: Site,
        at: datetime,
        colour: Colour,
        point: Point | None = None,
        by_number: dict[int, str] | None = None,
        names: set[str] | None = None,
    ) -> None: ...

    at = datetime(2026, 11, 1, 12, tzinfo=UTC)
    take.push(Site("a.com", at), at, Colour.RED, Point(1, 2), by_number={7: "x"}, names={"n"})
    [payload] = payloads(take)
    assert payload["site"] == {"domain": "a.com", "seen": "2026-11-01T12:00:00Z"}
    assert take.arguments.unpack(payload) == {
        "site": Site("a.com", at),
        "at": at,
        "colour": Colour.RED,
        "point": Point(1, 2),
        "by_number": {7: "x"},
        "names": {"n"},
    }


def test_what_has_no_type_at_run_time_stays_plain(fleet: Fleet) -> None:
    @fleet.task()
    def take(c: OnlyForTypeCheckers, d, e: int) -> OnlyForTypeCheckers: ...  # type: ignore[no-untyped-def,empty-body]

    payload = {"c": "1.5", "d": None, "e": 3}
    assert take.arguments.unpack(payload) == payload
    with pytest.raises(limpet.Fail, match="field 'e' does not fit"):
        take.arguments.unpack({**payload, "e": "three"})


def test_an_annotation_may_name_what_is_defined_later(fleet: Fleet) -> None:
    @fleet.task()
    def take(it: Later) -> None: ...

    assert take.arguments.unpack({"it": {"n": 1}}) == {"it": Later(1)}


@dataclass
class Later:
    n: int


def test_a_catch_all_takes_every_field(fleet: Fleet) -> None:
    @fleet.task()
    def take(a: int, **rest: int) -> dict[str, int]:
        return {"a": a, **rest}

    take.push(1, b=2, rest=3)
    [payload] = payloads(take)
    assert payload == {"a": 1, "b": 2, "rest": 3}
    assert take.handle(payload) == payload
    with pytest.raises(limpet.Fail, match="field 'b' does not fit"):
        take.handle({"a": 1, "b": "two"})
    with pytest.raises(Invalid, match="argument 'b' does not fit"):
        take.push(1, b="two")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, "missing a required argument: 'domain'"),
        (("a", 1, 2), {}, "too many positional arguments"),
        (("a",), {"nope": 1}, "got an unexpected keyword argument 'nope'"),
        ((5,), {}, "argument 'domain' does not fit enrich(domain: str, n: int = 1): Expected `str`, got `int`"),
        (("a", "x"), {}, "argument 'n' does not fit"),
        (("a",), {"n": object()}, "argument 'n' of enrich(domain: str, n: int = 1) cannot be written as JSON"),
    ],
)
def test_wrong_arguments_push_nothing(enrich: Enrich, args: Any, kwargs: Any, said: str) -> None:
    with pytest.raises(Invalid) as raised:
        enrich.push(*args, **kwargs)
    assert said in str(raised.value)
    assert "enrich(domain: str, n: int = 1)" in str(raised.value)
    assert "\n" not in str(raised.value)
    with pytest.raises(Invalid):
        enrich.push_many([("fine",), args, kwargs], batch=1)
    assert payloads(enrich) == []


def test_an_untyped_float_that_json_lacks_pushes_nothing(fleet: Fleet) -> None:
    @fleet.task()
    def take(x: float) -> None: ...

    with pytest.raises(Invalid):
        take.push(float("nan"))
    with pytest.raises(Invalid):
        take.push_many([(1.0,), (float("inf"),)])
    assert payloads(take) == []


def test_push_many_refuses_a_bare_string(enrich: Enrich) -> None:
    with pytest.raises(Invalid, match="call 0 of push_many is a str"):
        enrich.push_many(["a.com"])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ({}, "the payload has no field 'domain', which enrich(domain: str, n: int = 1) needs"),
        ({"domain": "a", "x": 1}, "the payload has a field 'x', which enrich(domain: str, n: int = 1) does not take"),
        ({"domain": 1}, "the payload's field 'domain' does not fit enrich(domain: str, n: int = 1): Expected `str`"),
        ([1], "the payload is a list, not an object with the arguments of enrich(domain: str, n: int = 1)"),
    ],
)
def test_a_payload_that_does_not_fit_fails_and_says_where(
    enrich: TaskFunction[..., None], payload: Any, said: str
) -> None:
    with pytest.raises(limpet.Fail) as raised:
        enrich.handle(payload)
    assert str(raised.value).startswith(said)
    assert "\n" not in str(raised.value)


def _with_args(*names: str) -> None: ...
def _positional_only(name: str, /) -> None: ...
def _method(self: Any, name: str) -> None: ...
def _yields(n: int) -> Any:
    yield n


async def _async_yields(n: int) -> Any:
    yield n


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (_with_args, "has arguments without a name"),
        (_positional_only, "has arguments without a name"),
        (_method, "is a method"),
        (_yields, "yields"),
        (_async_yields, "yields"),
        (lambda: None, "has no name"),
        (functools.partial(_with_args), "has no name"),
    ],
)
def test_what_cannot_be_a_task_is_refused_at_decoration(fleet: Fleet, function: Callable[..., Any], said: str) -> None:
    with pytest.raises(Invalid) as raised:
        fleet.task()(function)
    assert said in str(raised.value)
    assert raised.value.hint
    assert len(fleet.tasks) == 0


def test_the_parentheses_are_optional(fleet: Fleet) -> None:
    @fleet.task
    def bare(n: int) -> int:
        return n + 1

    assert (bare.name, bare(1)) == ("bare", 2)
    assert [task.name for task in fleet.tasks] == ["bare"]
    pushed = bare.push(1)
    assert testing.drain(fleet).done == 1
    assert bare.queue.result(pushed.id).value == 2
    with pytest.raises(Invalid, match="has arguments without a name"):
        fleet.task(_with_args)
    with pytest.raises(Invalid) as raised:
        fleet.task(5)  # type: ignore[call-overload]
    assert raised.value.hint == "write @fleet.task(), with parentheses"


def test_two_functions_cannot_share_a_name(fleet: Fleet) -> None:
    fleet.task("t")(_a)
    with pytest.raises(Invalid, match=r"two functions are named task 't': .*\._a and .*\._b"):
        fleet.task("t")(_b)
    assert [task.function for task in fleet.tasks] == [_a]


def test_the_same_function_may_be_defined_again(fleet: Fleet) -> None:
    """As a notebook does that runs a cell twice."""
    fleet.task("t", max_attempts=2)(_a)
    fleet.task("t", max_attempts=3)(_a)
    assert [task.queue.policy.max_attempts for task in fleet.tasks] == [3]


def _a() -> None: ...
def _b() -> None: ...


def test_cron_needs_a_function_without_arguments_and_a_line_that_comes(fleet: Fleet) -> None:
    with pytest.raises(Invalid, match=r"cron pushes need\(x: int\) without arguments"):

        @fleet.task(cron="* * * * *")
        def need(x: int) -> None: ...

    with pytest.raises(Invalid, match="'61' is no minute"):
        fleet.task(cron="61 * * * *")(_a)

    with pytest.raises(Invalid, match="cron_zone='Mars/Olympus' is no time zone"):
        fleet.task(cron="@hourly", cron_zone="Mars/Olympus")(_a)
    with pytest.raises(Invalid, match="cron_zone='Europe/Berlin' has no cron"):
        fleet.task(cron_zone="Europe/Berlin")(_a)

    @fleet.task(cron="@hourly")
    def fine(x: int = 1) -> None: ...

    assert fine.cron is not None

    @fleet.task(cron="0 3 * * *", cron_zone="Europe/Berlin")
    def nightly() -> None: ...

    assert nightly.cron is not None
    assert nightly.cron.last(datetime(2026, 7, 1, 12, tzinfo=UTC)) == datetime(2026, 7, 1, 1, tzinfo=UTC)


def test_a_policy_that_makes_no_sense_is_refused(fleet: Fleet) -> None:
    with pytest.raises(Invalid, match="max_attempts"):
        fleet.task(max_attempts=0)(_a)
    with pytest.raises(Invalid, match="no option 'tries'"):
        fleet.task(tries=3)(_a)  # type: ignore[call-overload]


def test_every_field_of_a_policy_is_a_keyword() -> None:
    names = "max_attempts ttl_s timeout_s backoff_s backoff_max_s concurrency rate_per_s retention_s poll_s durable"
    assert [*PolicyFields.__annotations__] == names.split()
    assert {field.name for field in fields(Policy)} == {*PolicyFields.__annotations__}


# ---- hooks ----


def _heard(fleet: Fleet) -> list[tuple[str, TaskRun]]:
    heard: list[tuple[str, TaskRun]] = []
    fleet.on_start(lambda run: heard.append(("start", run)))
    fleet.on_done(lambda run: heard.append(("done", run)))
    fleet.on_retry(lambda run: heard.append(("retry", run)))
    fleet.on_fail(lambda run: heard.append(("fail", run)))
    return heard


def test_hooks_hear_of_every_run(fleet: Fleet) -> None:
    heard = _heard(fleet)

    @fleet.task(max_attempts=2, backoff_s=0.0)
    def half(n: int) -> int:
        if n % 2:
            raise ValueError(f"{n} is odd")
        return n // 2

    pushed = [half.push(4), half.push(3)]
    assert testing.drain(fleet).failed == 1
    even = [(kind, run.attempt, run.result, run.error) for kind, run in heard if run.id == pushed[0].id]
    assert even == [("start", 1, None, None), ("done", 1, 2, None)]
    odd = [(kind, run.attempt, run.payload) for kind, run in heard if run.id == pushed[1].id]
    assert odd == [(kind, n, {"n": 3}) for kind, n in (("start", 1), ("retry", 1), ("start", 2), ("fail", 2))]
    last = heard[-1][1] if heard[-1][0] == "fail" else next(run for kind, run in heard if kind == "fail")
    assert (last.queue, last.error) == ("half", "ValueError: 3 is odd")
    assert isinstance(last.exception, ValueError)
    assert last.exception.__traceback__ is not None


def test_hooks_hear_of_coroutines_and_of_payloads_that_do_not_fit(fleet: Fleet) -> None:
    heard = _heard(fleet)

    @fleet.task(max_attempts=1)
    async def wait(n: int) -> int:
        await asyncio.sleep(0)
        return 10 // n

    wait.push(2)
    assert testing.drain(fleet).done == 1
    wait.push(0)
    fleet.queue("wait").push({"m": 1})
    assert testing.drain(fleet).failed == 2
    assert [kind for kind, _ in heard] == ["start", "done", "start", "fail", "start", "fail"]
    assert heard[1][1].result == 5
    kinds = {type(run.exception) for kind, run in heard if kind == "fail"}
    assert kinds == {ZeroDivisionError, limpet.Fail}


def test_a_hook_that_raises_is_logged_and_changes_nothing(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    @fleet.on_start
    @fleet.on_done
    def angry(run: TaskRun) -> None:
        raise SystemExit(f"no {run.id}")

    @fleet.task
    def ok() -> str:
        return "fine"

    pushed = ok.push()
    assert testing.drain(fleet).done == 1
    assert ok.queue.result(pushed.id).value == "fine"
    logged = [(record.name, record.getMessage().partition(" hook")[0]) for record in caplog.records]
    assert logged == [("limpet.hooks", "on_start"), ("limpet.hooks", "on_done")]
    with pytest.raises(Invalid, match="a hook is a function"):
        fleet.on_fail("angry")  # type: ignore[arg-type]


def test_a_plain_call_and_an_eager_push_call_no_hook(fleet: Fleet) -> None:
    heard = _heard(fleet)

    @fleet.task
    def ok() -> None:
        return None

    ok()
    with testing.eager(fleet):
        ok.push()
    assert heard == []
