"""Types of arguments, step values and results: stored as plain JSON, and built back by the annotation."""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, NoReturn, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pytest

import limpet
from limpet import Fleet, Invalid, TaskFailed, TaskHandle, testing
from limpet.kernel.models import model_of
from limpet.queue.value_types import return_type

T = TypeVar("T")
AT = datetime(2026, 11, 1, 12, tzinfo=UTC)
ONE = UUID(int=1)


class Colour(Enum):
    RED = "red"


@dataclass
class Site:
    domain: str
    seen: datetime | None = None


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    tricks: list[str]


class Order(pydantic.BaseModel):
    """A model that takes no text for a time, except in JSON, and one alias for each direction."""

    model_config = pydantic.ConfigDict(strict=True, extra="forbid")
    id: UUID
    price: Decimal = pydantic.Field(validation_alias="amount", serialization_alias="sum")
    at: datetime | None = None

    @pydantic.computed_field
    def cents(self) -> int:
        return int(self.price * 100)


class Basket(pydantic.BaseModel):
    orders: list[Order]


class Page(pydantic.BaseModel, Generic[T]):
    items: list[T]


class Duck:
    """Has the two functions without any of pydantic's options."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Duck) and other.n == self.n

    def model_dump(self) -> dict[str, int]:
        return {"n": self.n}

    @classmethod
    def model_validate(cls, plain: dict[str, int]) -> Duck:
        return cls(plain["n"])


@dataclass
class Cart:
    order: Order | None
    duck: Duck


class Pair(NamedTuple):
    left: int
    right: Site


class Row(TypedDict):
    order: Order


class Custom:
    """Can be neither written nor read."""


ORDER = Order(id=ONE, amount=Decimal("1.50"), at=AT)  # type: ignore[call-arg]  # by its alias
PLAIN_ORDER = {"id": str(ONE), "price": "1.50", "at": "2026-11-01T12:00:00Z"}
PLAIN_SITE = {"domain": "a.com", "seen": "2026-11-01T12:00:00Z"}

TYPES: dict[str, tuple[Any, Any, Any]] = {
    "int": (int, 5, 5),
    "dict": (dict[str, int], {"a": 1}, {"a": 1}),
    "datetime": (datetime, AT, "2026-11-01T12:00:00Z"),
    "timedelta": (timedelta, timedelta(hours=1), "PT3600S"),
    "decimal": (Decimal, Decimal("1.10"), "1.10"),
    "enum": (Colour, Colour.RED, "red"),
    "bytes": (bytes, b"\x00", "AA=="),
    "keys": (dict[UUID, Decimal], {ONE: Decimal(2)}, {str(ONE): "2"}),
    "set": (set[int], {7}, [7]),
    "literal": (Literal["a", 1], "a", "a"),
    "dataclass": (list[Site], [Site("a.com", AT)], [PLAIN_SITE]),
    "tagged": (Cat | Dog, Dog(["sit"]), {"type": "Dog", "tricks": ["sit"]}),
    "named tuple": (Pair, Pair(1, Site("a.com", AT)), [1, PLAIN_SITE]),
    "typed dict": (Row, {"order": ORDER}, {"order": PLAIN_ORDER}),
    "model": (Order, ORDER, PLAIN_ORDER),
    "no model": (Order | None, None, None),
    "models": (dict[str, list[Order]], {"a": [ORDER]}, {"a": [PLAIN_ORDER]}),
    "nested": (Basket, Basket(orders=[ORDER]), {"orders": [PLAIN_ORDER]}),
    "generic": (Page[Order], Page[Order](items=[ORDER]), {"items": [PLAIN_ORDER]}),
    "duck": (Duck, Duck(3), {"n": 3}),
    "in a dataclass": (Cart, Cart(ORDER, Duck(1)), {"order": PLAIN_ORDER, "duck": {"n": 1}}),
    "handle": (TaskHandle, TaskHandle("a"), "a"),
    "any": (Any, {"a": [None, 1.5]}, {"a": [None, 1.5]}),
    "object": (object, [1], [1]),
}


@pytest.fixture
def clock() -> testing.Clock:
    return testing.Clock()


@pytest.fixture
def fleet(clock: testing.Clock) -> Fleet:
    return testing.fleet(clock)


def annotated(function: Callable[..., Any], **kinds: Any) -> Callable[..., Any]:
    function.__annotations__ = {"return" if name == "returns" else name: kind for name, kind in kinds.items()}
    return function


def work(fleet: Fleet, clock: testing.Clock, times: int = 1) -> None:
    for _ in range(times):
        testing.drain(fleet)
        clock.advance(90)


@pytest.mark.parametrize("name", TYPES)
def test_arguments_step_values_and_results_are_built_by_the_annotation(
    fleet: Fleet, clock: testing.Clock, name: str
) -> None:
    kind, value, plain = TYPES[name]
    calls: list[Any] = []

    def note(it: Any) -> Any:
        calls.append(it)
        return it

    def carry(it: Any) -> Any:
        first = limpet.step(annotated(note, it=kind, returns=kind), it)
        limpet.sleep(30)  # the next run reads the step's record
        return limpet.step(note, first, name="again")

    def wait() -> Any:
        (end,) = limpet.gather([task.push(value)])
        return note(end.unwrap())

    task = fleet.task("carry")(annotated(carry, it=kind, returns=kind))
    pushed = task.push(value)
    assert [each.payload for each in task.queue.peek()] == [{"it": plain}]
    fleet.task("wait", durable=True)(annotated(wait, returns=kind)).push()
    work(fleet, clock, times=6)
    assert [type(call) for call in calls] == [type(value)] * 5
    result = pushed.result()
    assert [*calls, result.unwrap(), task.queue.results([pushed.id])[0].value] == [value] * 7
    assert type(result.value) is type(value)
    assert fleet.queue("carry").result(pushed.id).value == plain, "in the bucket it is plain JSON"


def test_a_coroutine_gives_its_awaited_type(fleet: Fleet) -> None:
    @fleet.task
    async def fetch(order: Order) -> Order:
        return order

    @fleet.task
    def begin(order: Order) -> Coroutine[Any, Any, Order]:
        return fetch(order)

    with testing.eager(fleet):
        assert [fetch.push(ORDER).result().unwrap(), begin.push(ORDER).result().unwrap()] == [ORDER, ORDER]


def test_the_shell_may_name_fields_by_their_aliases(fleet: Fleet) -> None:
    @fleet.task
    def take(order: Order) -> Order:
        return order

    pushed = fleet.queue("take").push({"order": {"id": str(ONE), "amount": "1.50", "at": "2026-11-01T12:00:00Z"}})
    testing.drain(fleet)
    assert take.queue.result(pushed.id).unwrap() == ORDER


def test_a_model_without_names_is_written_by_its_aliases() -> None:
    class Old:
        @classmethod
        def model_validate(cls, plain: Any) -> Any:
            return plain

        def model_dump(self, *, mode: str, by_alias: bool) -> Any:
            return mode, by_alias

    model = model_of(Old)
    assert model is not None
    assert model.plain(Old()) == ("json", True)
    assert model.build({"a": 1}) == {"a": 1}


def test_pydantic_is_not_imported_for_others() -> None:
    code = """
import limpet, sys
from limpet import testing
fleet = testing.fleet()
@fleet.task
def shout(text: str) -> str:
    return text.upper()
with testing.eager(fleet):
    assert shout.push("a").result().unwrap() == "A"
sys.exit("pydantic" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- refused when a task is defined ----

REFUSED: dict[str, tuple[Any, str]] = {
    "class": (Custom, "JSON cannot hold a value of type {here}.Custom"),
    "nested": (dict[str, list[Custom | None]], "JSON cannot hold a value of type {here}.Custom"),
    "function": (Callable[[], int], "JSON cannot hold a value of type collections.abc.Callable"),
    "iterable": (Iterable[int], "JSON cannot hold a value of type collections.abc.Iterable"),
    "path": (Path, "JSON cannot hold a value of type pathlib.Path"),
    "two models": (Order | Basket, "Type unions may not contain more than one custom type"),
    "two dataclasses": (Site | Cart, "Type unions may not contain more than one dataclass or attrs type"),
    "two texts": (str | UUID, "Type unions may not contain more than one str-like type"),
    "model or int": (Order | int, "Type unions containing a custom type may not contain any additional types"),
    "enum": (Enum("Odd", {"A": 1.5}), "Enums must contain either all str or all int values"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("where", ["it", "rest", "returns"])
def test_a_type_that_cannot_be_stored_is_refused_when_the_task_is_defined(fleet: Fleet, where: str, name: str) -> None:
    kind, said = REFUSED[name]

    def take(it: Any = None, **rest: Any) -> Any: ...

    with pytest.raises(Invalid) as refused:
        fleet.task(annotated(take, **{where: kind}))
    text = str(refused.value)
    assert said.format(here=__name__) in text
    assert text.startswith("the result of take(" if where == "returns" else f"parameter {where!r} of take(")
    assert "\n" not in text
    assert ("tag=True" if said.startswith("Type unions") else "pydantic models") in refused.value.hint
    assert len(fleet.tasks) == 0


def test_what_is_defined_after_the_task_is_refused_at_its_first_use(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take(it: Any) -> Any: ...

    task = fleet.task(annotated(take, it="Later", returns="list[Later]"))
    monkeypatch.setitem(globals(), "Later", Custom)
    for use in (lambda: task.push(1), lambda: task.handle({"it": 1}), lambda: task.job):
        with pytest.raises(Invalid, match=r"parameter 'it' of take\(it: Later\) cannot be stored: .*Custom"):
            use()


def test_what_no_worker_returns_needs_no_type(fleet: Fleet) -> None:
    def stop() -> NoReturn:
        raise limpet.Fail("no")

    assert return_type(stop).build is None
    assert fleet.task(stop).push().created


# ---- values that do not fit ----


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ({"order": {"id": str(ONE)}}, "amount: Field required"),
        ({"order": [PLAIN_ORDER]}, "Input should be an object"),
        (
            {"order": {"id": 1, "amount": [], "at": 1, "a": 1, "b": 2}},
            "id: UUID input should be a string, bytes or UUID object",
        ),
    ],
)
def test_a_payload_that_does_not_fit_a_model_is_a_final_failure(fleet: Fleet, payload: Any, said: str) -> None:
    @fleet.task
    def take(order: Order) -> None: ...

    pushed = fleet.queue("take").push(payload)
    testing.drain(fleet)
    result = take.queue.result(pushed.id)
    assert (result.state, result.attempts) == ("failed", 1)
    assert result.error is not None
    assert result.error.startswith("the payload's field 'order' does not fit take(order: Order)")
    assert said in result.error
    assert "\n" not in result.error
    with pytest.raises(Invalid, match="argument 'order' does not fit take"):
        take.push(payload["order"])


def test_a_result_that_does_not_fit_is_a_final_failure(fleet: Fleet) -> None:
    @fleet.task
    def count(n: int) -> int | None:
        return "many" if n else None  # type: ignore[return-value]

    @fleet.task
    def none() -> int:
        return None  # type: ignore[return-value]

    bad, good, empty = count.push(1), count.push(0), none.push()
    testing.drain(fleet)
    result = bad.result()
    assert (result.state, result.attempts) == ("failed", 1)
    assert result.error == (
        "the handler returned, but its result does not fit int | None: Expected `int | null`, got `str`"
    )
    assert (good.result().ok, empty.result().state) == (True, "failed")
    with testing.eager(fleet), pytest.raises(limpet.Fail, match="its result does not fit int"):
        count.push(1)


def test_a_stored_result_that_does_not_fit_stays_as_it_is(fleet: Fleet, clock: testing.Clock) -> None:
    """As after a deploy that changed the return type."""

    def made(n: int) -> Any:
        return {"n": n}

    old = testing.fleet(clock)
    task = old.task("make")(made)
    pushed = task.push(1)

    @old.task(durable=True)
    def wait() -> list[Any]:
        (end,) = limpet.gather([pushed])
        return [end.ok, end.value, end.error]

    work(old, clock)
    task.arguments.returns = return_type(annotated(lambda: None, returns=Site))
    waiting = wait.push()
    work(old, clock, times=3)
    result = pushed.result()
    assert (result.state, result.value) == ("completed", {"n": 1})
    assert result.error is not None
    assert result.error.startswith(f"the result does not fit {__name__}.Site: ")
    assert waiting.result().unwrap() == [True, {"n": 1}, result.error]
    with pytest.raises(Invalid, match=f"task '{pushed.id}': the result does not fit") as refused:
        result.unwrap()
    assert "fleet.queue(name).result(id)" in refused.value.hint
    task.arguments.returns = return_type(annotated(lambda: None, returns=dict[str, float]))
    assert pushed.result().unwrap() == {"n": 1.0}


# ---- unwrap ----


def test_unwrap_raises_what_the_worker_raised(fleet: Fleet) -> None:
    @fleet.task(max_attempts=2, backoff_s=0.0)
    def divide(n: int) -> int:
        return 10 // n

    pushed = divide.using(id=0).push(0)
    testing.drain(fleet)
    with pytest.raises(TaskFailed) as raised:
        pushed.result().unwrap()
    failed = raised.value
    first, _, trace = str(failed).partition("\n")
    assert first == "task '0' failed after 2 attempts: ZeroDivisionError: integer division or modulo by zero"
    assert "return 10 // n" in trace
    assert (failed.id, failed.state, failed.attempts) == ("0", "failed", 2)
    assert failed.error == "ZeroDivisionError: integer division or modulo by zero"
    assert failed.traceback is not None
    assert failed.traceback in str(failed)
    assert failed.hint == "queue.retry('0'), or `limpet queue retry`, runs it again"
    assert "return 10 // n" in "".join(traceback.format_exception(failed))


def test_unwrap_of_what_has_no_value_says_why(fleet: Fleet) -> None:
    @fleet.task
    def wait(n: int) -> int:
        return n

    wait.using(id="waits").push(1)
    wait.using(id="later", delay_s=60).push(1)
    wait.using(id="stopped").push(1)
    wait.queue.cancel("stopped")
    said = {
        "waits": ("has not ended: it is pending", "wait for it"),
        "later": ("has not ended: it is scheduled", "wait for it"),
        "stopped": ("was cancelled", "push it again"),
        "gone": ("is not there", "check the id"),
    }
    for id_, (text, hint) in said.items():
        with pytest.raises(TaskFailed) as raised:
            wait.queue.result(id_).unwrap()
        assert str(raised.value) == f"task {id_!r} {text}"
        assert raised.value.hint.startswith(hint)
        assert raised.value.state == wait.queue.result(id_).state


# ---- ids ----


def test_ids_may_be_numbers(fleet: Fleet) -> None:
    @fleet.task(max_attempts=1)
    def take(n: int) -> int:
        return 10 // n

    assert take.using(id=5).push(1) == limpet.Pushed("5", True)
    assert not fleet.queue("take").push({"n": 1}, id=5).created
    assert take.using(id=0).push(0).created
    assert take.using(id=-1).push(1).created
    assert take.using(id=7).push(1).created
    assert take.queue.cancel(7)
    assert take.push_many([(1,), (2,)], id=3) == take.push_many([(1,), (2,)], id="3")
    testing.drain(fleet)
    queue: Any = take.queue
    assert [result.state for result in queue.results([5, -1, 0, 7])] == ["completed"] * 2 + ["failed", "cancelled"]
    assert queue.result(5, wait_s=1).id == queue.wait([5], timeout_s=1)[0].id == "5"
    assert [error.attempt for error in queue.errors(0)] == [1]
    assert queue.describe(0)["id"] == "0"
    assert queue.retry(0) == ["0~1"]


def test_a_signal_may_go_to_a_number(fleet: Fleet, clock: testing.Clock) -> None:
    @fleet.task
    def wait() -> Any:
        return limpet.wait_signal("go")

    wait.using(id=8).push()
    assert testing.drain(fleet).suspended == 1
    assert wait.queue.signal(8, "go", "now")
    work(fleet, clock, times=2)
    assert wait.queue.result(8).unwrap() == "now"
