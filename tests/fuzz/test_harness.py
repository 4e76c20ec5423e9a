"""The fuzz finds what it looks for: each kind of failure is met by a consumer that is wrong on purpose."""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from fuzz import world
from fuzz.kinds import KINDS, run_workers, serve_catalog
from fuzz.mutate import HUGE, mutations_of
from fuzz.run import SEED, TOTAL, Failure, cases, named, rotated, run_case
from fuzz.world import Bench, Exceeded, Stopped, Unfit
from limpet.kernel import catalog_keys, keys
from limpet.kernel.errors import Corrupt, Invalid
from limpet.kernel.keys import Key


def found(consumer: Callable[[Bench], object], mutation: str = "cut:half", kind: str = "task") -> list[Failure]:
    """What a consumer did with one damaged object."""
    return run_case(KINDS[kind], named(KINDS[kind], mutation), [consumer])


def test_an_exception_that_is_not_ours_is_found() -> None:
    def careless(bench: Bench) -> None:
        json.loads(bench.store.get(Key(bench.key)).data)

    (failure,) = found(careless)
    assert isinstance(failure.error, ValueError)
    assert "python tests/fuzz/run.py task cut:half --consumer careless" in str(failure)


def test_an_error_of_ours_that_comes_out_is_found_and_a_tolerated_one_is_not() -> None:
    def refuse() -> None:
        raise Corrupt("it is damaged")

    assert isinstance(found(lambda bench: refuse())[0].error, Corrupt)
    assert found(lambda bench: world.tolerated(refuse)) == []


def test_an_error_text_with_control_characters_is_found() -> None:
    def refuse() -> None:
        raise Invalid("the name \x1b[31m is odd")

    assert isinstance(found(lambda bench: world.tolerated(refuse))[0].error, Unfit)


def test_work_that_is_not_done_is_found() -> None:
    (failure,) = found(lambda bench: bench.demand(False, "the task beside it is pending"))
    assert isinstance(failure.error, Stopped)


def test_endless_requests_and_endless_sleep_are_found() -> None:
    def ask(bench: Bench) -> None:
        while True:
            bench.store.head(Key("limpet.json"))

    def wait(bench: Bench) -> None:
        while True:
            bench.runtime.sleep(1.0)

    assert "requests" in str(found(ask)[0].error)
    assert "slept" in str(found(wait)[0].error)


def test_an_endless_loop_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "CPU_S", 0.2)

    def turn(bench: Bench) -> None:
        while True:
            pass

    assert "CPU" in str(found(turn)[0].error)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "MEMORY_BYTES_MAX", 32 << 20)
    assert "MiB of memory" in str(found(lambda bench: bytearray(b"x" * (64 << 20)))[0].error)


def test_an_object_of_3_gb_that_is_read_whole_is_found() -> None:
    def whole(bench: Bench) -> None:
        bench.store.get(Key(bench.key), size_max=None)

    def capped(bench: Bench) -> None:
        with pytest.raises(Corrupt):
            bench.store.get(Key(bench.key))
        assert len(bench.store.get(Key(bench.key), range=(0, 100)).data) == 100

    assert isinstance(found(whole, HUGE)[0].error, Exceeded)
    assert found(capped, HUGE) == []


def test_what_a_terminal_would_obey_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("limpet.cli.main", lambda arguments: print("\x1b[31m"))
    assert isinstance(found(lambda bench: bench.cli("status"))[0].error, Unfit)


def test_a_mistake_in_a_command_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def mistake(*_: object) -> None:
        raise KeyError("it")

    monkeypatch.setattr("fuzz.world._parser", mistake)
    assert isinstance(found(lambda bench: bench.cli("status"))[0].error, KeyError)


def test_a_mistake_in_a_handler_of_the_service_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def mistake(*_: object) -> None:
        raise KeyError("it")

    KINDS["metadata"].fleet()
    monkeypatch.setattr("limpet.catalog.catalog.Catalog.load_table", mistake)
    assert isinstance(found(serve_catalog, "empty", "metadata")[0].error, KeyError)


def test_a_mistake_in_a_worker_process_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def mistake(*_: object, **__: object) -> None:
        raise KeyError("it")

    KINDS["task"].fleet()
    monkeypatch.setattr("limpet.queue.BucketQueue.claim", mistake)
    assert isinstance(found(run_workers)[0].error, KeyError)


def test_every_consumer_gets_some_of_every_kind() -> None:
    for kind in KINDS.values():
        drawn = enumerate(cases(kind, TOTAL // len(KINDS) + 1, SEED))
        had = Counter(consumer.__name__ for n, mutation in drawn for consumer in rotated(kind, mutation, n))
        assert {*had} == {consumer.__name__ for consumer in kind.consumers}
        assert min(had.values()) >= 3, (kind.name, had)


def test_digests_are_put_right_so_that_damage_gets_past_them() -> None:
    read: list[object] = []

    def work(bench: Bench) -> None:
        queue = bench.open().queue("q")
        read.extend(peeked.payload for peeked in queue.peek(100) if peeked.id == "bad")

    assert found(work, "$.payload.n=text") == []
    assert read == [{"n": "x"}]


def test_mutations_are_the_same_for_the_same_seed_and_others_for_another() -> None:
    names = [[each.name for each in cases(KINDS["lease"], 60, seed)] for seed in (SEED, SEED, SEED + 1)]
    assert names[0] == names[1] != names[2]
    assert len({*names[0]}) == 60


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_has_an_object_and_many_mutations_that_change_it(name: str) -> None:
    kind = KINDS[name]
    data = kind.fleet().data(kind.key(), kind.place)
    fixed, drawn = mutations_of(kind.form, data, Random(1))
    assert len(fixed) + len(drawn) > 50
    assert re.fullmatch(kind.pattern, kind.key())
    same = [each.name for each in (*fixed, *drawn[:40]) if each.name != HUGE and each.apply(data) == data]
    assert len(same) <= 2, same


OBJECTS: dict[str, tuple[str, ...]] = {
    "lock_key": ("lock", "lock-held"),
    "cell_key": ("cell",),
    "worker_key": ("presence",),
    "backup_list_key": ("backup-list",),
    "outbox_key": ("sync-outbox",),
    "cursor_key": ("sync-cursor",),
    "log_key": ("sync-log", "sync-log-lease", "sync-log-client"),
    "drop_lock": ("drop-lock",),
    "QueueKeys.control": ("control",),
    "QueueKeys.drop": ("queue-drop",),
    "QueueKeys.history": ("history",),
    "QueueKeys.bell": ("bell",),
    "QueueKeys.sweep": ("sweep",),
    "QueueKeys.tasks": ("task", "batch"),
    "QueueKeys.lease": ("lease", "lease-free", "lease-batch", "lease-spread", "lease-suspended"),
    "QueueKeys.remote": ("remote-lease",),
    "QueueKeys.completed_of": ("receipt-completed", "receipt-batch"),
    "QueueKeys.failed_of": ("receipt-failed", "receipt-retried", "receipt-part-of-batch"),
    "QueueKeys.scheduled_at": ("scheduled",),
    "QueueKeys.part": ("result-part",),
    "QueueKeys.slot": ("slot",),
    "QueueKeys.asking": ("asking",),
    "QueueKeys.step": ("step", "step-push", "step-gather"),
    "QueueKeys.signal": ("signal",),
    "QueueKeys.shape": ("push-shape",),
    "IndexKeys.drop": ("index-drop",),
    "IndexKeys.manifest": ("manifest",),
    "IndexKeys.package": ("datapackage",),
    "IndexKeys.json_schema": ("schema.json",),
    "IndexKeys.single": ("single",),
    "IndexKeys.pack": ("pack",),
    "IndexKeys.shard": ("shard",),
    "IndexKeys.lock": ("shard-lock",),
    "IndexKeys.import_": ("import",),
    "IndexKeys.quarantined": ("index-quarantine",),
    "CatalogKeys.lock": ("catalog-lock",),
    "CatalogKeys.head": ("head", "events-head"),
    "CatalogKeys.sequence": ("sequence",),
    "CatalogKeys.batch": ("ledger", "events"),
    "CatalogKeys.commit": ("commit",),
    "CatalogKeys.snapshot": ("snapshot",),
    "CatalogKeys.state": ("events-state",),
    "CatalogKeys.quarantined": ("events-quarantine",),
    "CatalogKeys.reason": ("events-reason",),
}
"""The kinds of what each function of `limpet.kernel.keys` names."""
SINGLE = {"FLEET": "limpet.json", "BACKUP": "backup", "NODE": "sync-node", "SUPERVISOR": "sync-supervisor"}
UNREAD = {
    "clock_key": "only its time is read",
    "probe_key": "an object of `doctor`, which compares it with what it wrote",
    "damaged_key": "put aside for people",
    "join": "a key below a prefix",
    "check_path": "a key that another program chose",
}
WAREHOUSE = {"metadata", "view-metadata", "table-metadata", "table-manifest", "table-manifest-list", "table-data"}


def _makers() -> set[str]:
    """The functions, methods and fields of `limpet.kernel.keys` that make a key."""
    members = vars(keys) | vars(catalog_keys)
    makers = {name: value for name, value in members.items() if inspect.isfunction(value)}
    fields = set()
    for kind in members.values():
        if inspect.isclass(kind):
            own = {name: getattr(value, "fget", getattr(value, "func", value)) for name, value in vars(kind).items()}
            makers |= {f"{kind.__name__}.{name}": value for name, value in own.items() if inspect.isfunction(value)}
            objects = (name for name, value in own.items() if getattr(value, "__orig_class__", None) is keys.Object)
            fields |= {f"{kind.__name__}.{name}" for name in objects}
    return fields | {name for name, value in makers.items() if value.__annotations__.get("return") == "Key"}


def test_every_object_that_limpet_names_is_damaged() -> None:
    """A new kind of object is added here, and to the fuzz."""
    assert _makers() == {*OBJECTS} | {*UNREAD}
    named = {name for kinds in OBJECTS.values() for name in kinds} | {*SINGLE.values()} | WAREHOUSE
    assert named == {*KINDS}
