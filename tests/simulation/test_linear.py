"""The linearizability checker, against histories whose answer is known, and against brute force."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from sim.kernel import OPEN, History, Operation, cell_model, linearizable

EMPTY = (None, 0)


def _op(name: str, argument: object, began: float, ended: float, answer: object = "ok") -> Operation:
    return Operation("p", name, argument, began, ended, answer)


def test_a_read_must_not_go_back_in_time() -> None:
    write = _op("write", ("a", None), 1, 2)
    later = _op("read", None, 3, 4, "a")
    stale = _op("read", None, 5, 6, None)
    assert linearizable([write, later], EMPTY, cell_model)
    assert linearizable([write, later, stale], EMPTY, cell_model) is False


def test_concurrent_operations_may_take_effect_in_either_order() -> None:
    write = _op("write", ("a", None), 1, 10)
    assert linearizable([write, _op("read", None, 2, 3, None)], EMPTY, cell_model)
    assert linearizable([write, _op("read", None, 2, 3, "a")], EMPTY, cell_model)


def test_a_conflict_for_a_write_that_is_seen_later_is_a_lie() -> None:
    lie = _op("create", "a", 1, 2, "Conflict")
    assert linearizable([lie, _op("read", None, 3, 4, "a")], EMPTY, cell_model) is False


def test_an_open_operation_may_take_effect_late_or_never_but_once() -> None:
    open_add = _op("add", None, 1, OPEN, None)
    assert linearizable([open_add, _op("read", None, 2, 3, None)], EMPTY, cell_model)
    assert linearizable([open_add, _op("read", None, 2, 3, None), _op("read", None, 4, 5, 1)], EMPTY, cell_model)
    assert linearizable([open_add, _op("read", None, 4, 5, 2)], EMPTY, cell_model) is False


def test_a_lower_token_is_refused_and_a_refusal_needs_a_higher_one() -> None:
    high = _op("write", ("a", 2), 1, 2)
    assert linearizable([high, _op("write", ("b", 1), 3, 4)], EMPTY, cell_model) is False
    assert linearizable([high, _op("write", ("b", 1), 3, 4, "LeaseLost")], EMPTY, cell_model)
    assert linearizable([_op("write", ("b", 1), 3, 4, "LeaseLost")], EMPTY, cell_model) is False


def test_the_history_keeps_unanswered_operations_open() -> None:
    history = History()
    operation = history.begin("p", "k", "add")
    assert operation.ended == OPEN
    history.end(operation, 1)
    assert operation.ended > operation.began
    assert "add(None) -> 1" in str(operation)


def _brute(operations: list[Operation]) -> bool:
    must = [op for op in operations if op.ended != OPEN]
    maybe = [op for op in operations if op.ended == OPEN]
    for n in range(1 << len(maybe)):
        chosen = must + [op for i, op in enumerate(maybe) if n >> i & 1]
        for order in permutations(chosen):
            if any(b.ended < a.began for i, a in enumerate(order) for b in order[i + 1 :]):
                continue
            states = [EMPTY]
            for op in order:
                states = [after for state in states for after in cell_model(state, op)]
            if states:
                return True
    return False


@st.composite
def _histories(draw: st.DrawFn) -> list[Operation]:
    operations = []
    for i in range(draw(st.integers(1, 5))):
        began = draw(st.integers(0, 8))
        ended: float = draw(st.integers(began + 1, 10)) if draw(st.booleans()) or i == 0 else OPEN
        kind = draw(st.sampled_from(["read", "add", "create", "write"]))
        answer: object
        argument: object
        match kind:
            case "read":
                answer, argument = draw(st.sampled_from([None, 1, 2, "x0", "x1"])), None
            case "add":
                answer, argument = draw(st.integers(1, 3)), None
            case "create":
                answer, argument = draw(st.sampled_from(["ok", "Conflict"])), f"x{i}"
            case _:
                token = draw(st.sampled_from([None, 1, 2]))
                answer, argument = draw(st.sampled_from(["ok", "LeaseLost"])), (i, token)
        operations.append(Operation("p", kind, argument, began, ended, answer))
    return sorted(operations, key=lambda op: op.began)


@settings(max_examples=400, deadline=None)
@given(_histories())
def test_it_agrees_with_brute_force(operations: list[Operation]) -> None:
    # Ticks of a history are distinct; equal ones here count as concurrent in both.
    assert linearizable(operations, EMPTY, cell_model) == _brute(operations)
