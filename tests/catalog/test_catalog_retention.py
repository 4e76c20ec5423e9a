"""The rules of maintenance, as tables and for random histories: what a branch or tag needs never goes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.catalog.iceberg.rewrite import _CapturedFiles
from limpet.catalog.maintain.decide import (
    DAY_MS,
    MAX_AGE_MS,
    ExpiryPlan,
    ListedFile,
    RetentionPolicy,
    RewriteCandidate,
    TableHistory,
    assigned_row_id,
    expired,
    expiry_request,
    history_of,
    inherited_row_id,
    names_of,
    orphans,
    policy_of,
    recent_metadata,
    rewrite_groups,
    was_added,
)
from limpet.kernel.errors import Corrupt

NOW = 100 * DAY_MS
AT = datetime(2026, 11, 1, tzinfo=UTC)


def history(snapshots: dict[int, tuple[int | None, int]], refs: dict[str, Any], /, **fields: Any) -> TableHistory:
    """Snapshots by id: (parent, age in days)."""
    found = {
        "format-version": 2,
        "table-uuid": "u",
        "location": "s3://b/warehouse/t",
        "last-updated-ms": NOW,
        "snapshots": [
            {"snapshot-id": id_, "timestamp-ms": NOW - age * DAY_MS, "parent-snapshot-id": parent}
            for id_, (parent, age) in snapshots.items()
        ],
        "refs": {name: ref if isinstance(ref, dict) else {"snapshot-id": ref} for name, ref in refs.items()},
        **fields,
    }
    return history_of(json.dumps(found).encode(), "t")


LINE = {1: (None, 40), 2: (1, 30), 3: (2, 20), 4: (3, 10)}
TWIG = {**LINE, 5: (2, 25), 6: (5, 24)}


@pytest.mark.parametrize(
    ("snapshots", "refs", "policy", "gone", "gone_refs"),
    [
        (LINE, {"main": 4}, RetentionPolicy(), {1, 2, 3}, ()),
        (LINE, {"main": 4}, RetentionPolicy(min_snapshots=3), {1}, ()),
        (LINE, {"main": 4}, RetentionPolicy(max_age_ms=20 * DAY_MS), {1, 2}, ()),
        (LINE, {"main": 4}, RetentionPolicy(max_age_ms=20 * DAY_MS - 1), {1, 2, 3}, ()),
        (LINE, {"main": 4, "old": {"snapshot-id": 1, "type": "tag"}}, RetentionPolicy(), {2, 3}, ()),
        (TWIG, {"main": 4, "dev": 6}, RetentionPolicy(), {1, 2, 3, 5}, ()),
        (TWIG, {"main": 4, "dev": {"snapshot-id": 6, "min-snapshots-to-keep": 2}}, RetentionPolicy(), {1, 2, 3}, ()),
        (TWIG, {"main": 4, "dev": {"snapshot-id": 6, "max-snapshot-age-ms": 25 * DAY_MS}}, RetentionPolicy(),
         {1, 2, 3}, ()),
        (TWIG, {"main": 4, "dev": {"snapshot-id": 6, "max-ref-age-ms": 23 * DAY_MS}}, RetentionPolicy(),
         {1, 2, 3, 5, 6}, ("dev",)),
        (TWIG, {"main": 4, "dev": {"snapshot-id": 6, "max-ref-age-ms": 24 * DAY_MS}}, RetentionPolicy(),
         {1, 2, 3, 5}, ()),
        (LINE, {"main": {"snapshot-id": 4, "max-ref-age-ms": 1}}, RetentionPolicy(), {1, 2, 3}, ()),
        (LINE, {"main": 4, "v": {"snapshot-id": 1, "type": "tag"}}, RetentionPolicy(max_ref_age_ms=DAY_MS),
         {1, 2, 3}, ("v",)),
        ({**LINE, 9: (None, 1)}, {"main": 4}, RetentionPolicy(), {1, 2, 3}, ()),
        ({**LINE, 9: (None, 6)}, {"main": 4}, RetentionPolicy(), {1, 2, 3, 9}, ()),
        ({**LINE, 9: (None, 5)}, {"main": 4}, RetentionPolicy(), {1, 2, 3}, ()),
        (TWIG, {"main": 4, "v": {"snapshot-id": 6, "type": "tag"}}, RetentionPolicy(min_snapshots=2), {1, 2, 5}, ()),
        (LINE, {"main": {"snapshot-id": 4, "max-snapshot-age-ms": 0}}, RetentionPolicy(max_age_ms=50 * DAY_MS),
         {1, 2, 3}, ()),
        ({}, {}, RetentionPolicy(), set(), ()),
        (LINE, {"main": 4, "lost": 77}, RetentionPolicy(), {1, 2, 3}, ("lost",)),
    ],
)  # fmt: skip
def test_what_expires(snapshots: Any, refs: Any, policy: RetentionPolicy, gone: set[int], gone_refs: Any) -> None:
    assert expired(history(snapshots, refs), policy, NOW) == ExpiryPlan(tuple(sorted(gone)), gone_refs)


def test_a_current_snapshot_without_a_branch_stays() -> None:
    assert expired(history(LINE, {}, **{"current-snapshot-id": 4}), RetentionPolicy(), NOW).snapshots == (1, 2, 3)
    of_zero = history({0: (None, 40)}, {}, **{"current-snapshot-id": 0})
    assert {name: ref.snapshot_id for name, ref in of_zero.all_refs().items()} == {"main": 0}
    for current in (None, -1, 9):
        assert history(LINE, {}, **{"current-snapshot-id": current}).all_refs() == {}
    ruled = history(LINE, {"main": {"snapshot-id": 4, "min-snapshots-to-keep": 2}}, **{"current-snapshot-id": 4})
    assert ruled.all_refs()["main"].min_snapshots_to_keep == 2


def test_a_plan_says_whether_there_is_anything_to_do() -> None:
    assert [bool(ExpiryPlan(*each)) for each in (((1,), ()), ((), ("a",)), ((), ()))] == [True, True, False]


LONG = 1 << 63


@pytest.mark.parametrize(
    ("fields", "fine"),
    [
        ({"snapshots": [{"snapshot-id": LONG - 1, "timestamp-ms": -LONG}]}, True),
        ({"snapshots": [{"snapshot-id": LONG, "timestamp-ms": 0}]}, False),
        ({"snapshots": [{"snapshot-id": 1, "timestamp-ms": -LONG - 1}]}, False),
        ({"location": "x" * 1048576}, True),
        ({"location": "x" * 1048577}, False),
        ({"statistics": [{"statistics-path": ""}] * 1048576}, True),
        ({"statistics": [{"statistics-path": ""}] * 1048577}, False),
    ],
    ids=["longest", "longer id", "longer time", "location", "longer location", "statistics", "more statistics"],
)
def test_metadata_has_bounds(fields: dict[str, Any], fine: bool) -> None:
    if fine:
        assert history({}, {}, **fields)
    else:
        with pytest.raises(Corrupt):
            history({}, {}, **fields)


def test_a_cycle_of_parents_ends() -> None:
    table = history({1: (2, 40), 2: (1, 30)}, {"main": 2})
    assert expired(table, RetentionPolicy(max_age_ms=50 * DAY_MS), NOW).snapshots == ()


@given(st.data())
def test_a_branch_or_tag_keeps_its_snapshot_and_its_rule(data: st.DataObject) -> None:
    """For any history: every ref that stays has its snapshot, and of a branch the newest ones without a gap."""
    count = data.draw(st.integers(1, 12))
    snapshots = {
        n: (data.draw(st.one_of(st.none(), st.integers(1, n - 1))) if n > 1 else None, data.draw(st.integers(0, 60)))
        for n in range(1, count + 1)
    }
    ids = st.integers(1, count)
    refs: dict[str, Any] = {"main": data.draw(ids)}
    for name in data.draw(st.sets(st.sampled_from("abcd"))):
        refs[name] = {"snapshot-id": data.draw(ids), "type": data.draw(st.sampled_from(["branch", "tag"]))}
    policy = RetentionPolicy(data.draw(st.integers(0, 60)) * DAY_MS, data.draw(st.integers(1, 4)))
    table = history(snapshots, refs)
    plan = expired(table, policy, NOW)
    left = {*snapshots} - {*plan.snapshots}
    assert plan.refs == (), "no ref has an age limit"
    for ref in table.all_refs().values():
        assert ref.snapshot_id in left
        if ref.type == "branch":
            id_: int | None = ref.snapshot_id
            for _ in range(policy.min_snapshots):
                if id_ is not None:
                    assert id_ in left
                    id_ = snapshots[id_][0]
    assert all(snapshots[id_][1] * DAY_MS >= policy.max_age_ms for id_ in plan.snapshots if policy.max_age_ms)


def test_the_properties_of_the_table_count_unless_the_caller_says() -> None:
    properties = {
        "history.expire.max-snapshot-age-ms": "7",
        "history.expire.min-snapshots-to-keep": "3",
        "history.expire.max-ref-age-ms": "9",
    }
    assert policy_of(properties) == RetentionPolicy(7, 3, 9)
    assert policy_of(properties, max_age_ms=0, min_snapshots=1) == RetentionPolicy(0, 1, 9)
    assert policy_of({}) == RetentionPolicy(432_000_000, 1, None), "the defaults of Iceberg"
    assert policy_of(dict.fromkeys(properties, "0")) == RetentionPolicy(0, 1, 0)
    assert policy_of(dict.fromkeys(properties, "9" * 18)) == RetentionPolicy(*[10**18 - 1] * 3)
    assert policy_of(dict.fromkeys(properties, "9" * 19)) == RetentionPolicy(MAX_AGE_MS, 1, None)
    wrong = {"history.expire.max-snapshot-age-ms": "-5", "history.expire.min-snapshots-to-keep": "0"}
    assert policy_of(wrong) == RetentionPolicy(MAX_AGE_MS, 1, None)


def test_an_expiry_requires_the_branches_that_it_looked_at() -> None:
    table = history(TWIG, {"main": 4, "dev": 6})
    request = expiry_request(table, ExpiryPlan((1, 2), ("dev",)))
    assert request["requirements"] == [
        {"type": "assert-table-uuid", "uuid": "u"},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 4},
        {"type": "assert-ref-snapshot-id", "ref": "dev", "snapshot-id": 6},
    ]
    assert request["updates"] == [
        {"action": "remove-snapshot-ref", "ref-name": "dev"},
        {"action": "remove-snapshots", "snapshot-ids": [1, 2]},
    ]


def test_metadata_that_is_none_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="the metadata of t cannot be read"):
        history_of(b"{}", "t")


def sized(*sizes: int, partition: str = "", deletes: bool = False) -> list[RewriteCandidate]:
    return [RewriteCandidate(n, partition, size, deletes) for n, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("files", "groups"),
    [
        (sized(10, 10, 10), [3]),
        (sized(10), []),
        (sized(75, 74, 10), [2]),
        (sized(75, 10, 10), [2]),
        (sized(74, 10, 10), [3]),
        (sized(80, 10, 10), [2]),
        (sized(60, 40, 10, 10), [2, 2]),
        (sized(60, 41, 10, 10), [3]),
        (sized(10) + sized(10, partition="other"), []),
        (sized(90, deletes=True), [1]),
        (sized(200, deletes=True) + sized(10, 10), [1, 2]),
    ],
)
def test_what_is_rewritten(files: list[RewriteCandidate], groups: list[int]) -> None:
    assert [len(group) for group in rewrite_groups(files, target_bytes=100, min_files=2)] == groups


@pytest.mark.parametrize(
    ("files", "groups"),
    [
        (sized(40, 40, 40, 40), [2, 2]),
        (sized(30, 30, 30, 30), [3]),
        (sized(40, 35), [2]),
        (sized(40, 35, 10), [3]),
        (sized(60, 35, 80, deletes=True), [2, 1]),
        (sized(40, 34), []),
        (sized(10, 10, 10, 10), []),
        (sized(10, 10, 10, 10, 10), [5]),
        (sized(0, 10) + sized(0, 10, partition="other"), []),
        (sized(70) + sized(70, partition="other"), []),
    ],
)
def test_few_files_are_rewritten_if_they_fill_one(files: list[RewriteCandidate], groups: list[int]) -> None:
    assert [len(group) for group in rewrite_groups(files, target_bytes=100, min_files=5)] == groups


def test_many_small_files_are_grouped_in_one_pass() -> None:
    [group] = rewrite_groups(sized(*[1] * 300_000), target_bytes=1 << 20, min_files=5)
    assert len(group) == 300_000


def test_a_group_is_filled_to_the_last_byte() -> None:
    for last, groups in ((40, [1, 2]), (41, [1, 1, 1])):
        found = rewrite_groups(sized(60, 60, last), target_bytes=100, min_files=1)
        assert [len(group) for group in found] == groups


@pytest.mark.parametrize(
    ("properties", "owns"),
    [({}, True), ({"gc.enabled": "true"}, True), ({"gc.enabled": "TRUE"}, True), ({"gc.enabled": "false"}, False),
     ({"gc.enabled": "FALSE"}, False), ({"gc.enabled": "no"}, False), ({"gc.enabled": ""}, False)],
)  # fmt: skip
def test_a_table_says_whether_its_files_are_its_own(properties: dict[str, str], owns: bool) -> None:
    assert history({}, {}, properties=properties).owns_files() is owns


def test_without_sequence_numbers_a_commit_that_was_refused_may_have_expired() -> None:
    """Format version 1 has none, or all are 0; and so it is in a table that became version 2."""
    zero = {"snapshot-id": 1, "timestamp-ms": 0, "sequence-number": 0}
    for table in (history({1: (None, 1)}, {}), history({}, {}, snapshots=[zero])):
        assert was_added(table, {"snapshot-id": 1, "sequence-number": 0}) is True
        assert was_added(table, {"snapshot-id": 7, "sequence-number": 0}) is None
        assert was_added(table, {"snapshot-id": 7, "sequence-number": 1}) is False
    upgraded = history({1: (None, 1)}, {}, **{"last-sequence-number": 1})
    assert was_added(upgraded, {"snapshot-id": 7, "sequence-number": 1}) is None


@pytest.mark.parametrize(
    ("others", "last", "was"),
    [
        ({7: 5}, 5, True),
        ({8: 5}, 5, False),
        ({8: 4}, 4, False),
        ({}, 0, False),
        ({8: 6}, 6, None),
        ({8: 4}, 5, None),
        ({7: 5, 8: 6}, 6, True),
        ({8: 5, 9: 6}, 6, False),
    ],
)
def test_whether_a_refused_commit_was_applied(others: dict[int, int], last: int, was: bool | None) -> None:
    """Our snapshot is 7, and has the sequence number 5. `others`: the sequence numbers of those that are there."""
    snapshots = [{"snapshot-id": id_, "timestamp-ms": 0, "sequence-number": n} for id_, n in others.items()]
    table = history({}, {}, snapshots=snapshots, **{"last-sequence-number": last})
    assert was_added(table, {"snapshot-id": 7, "sequence-number": 5}) is was


@pytest.mark.parametrize(
    ("manifest", "own", "ids"),
    [
        (None, [None, None], [None, None]),
        (None, [7, None], [None, None]),
        (100, [None, None, None], [100, 110, 120]),
        (100, [None, 7, None], [100, 7, 110]),
        (100, [0, None, 0], [0, 100, 0]),
        (0, [None, None], [0, 10]),
    ],
)
def test_the_row_ids_of_the_files_of_a_manifest(
    manifest: int | None, own: list[int | None], ids: list[int | None]
) -> None:
    found, next_id = [], manifest
    for each in own:
        first, next_id = inherited_row_id(each, 10, next_id)
        found.append(first)
    assert found == ids


@pytest.mark.parametrize(
    ("own", "is_data", "ids"),
    [
        (None, True, (50, 60)),
        (7, True, (7, 50)),
        (0, True, (0, 50)),
        (None, False, (None, 50)),
    ],
)
def test_a_manifest_gets_row_ids_once(own: int | None, is_data: bool, ids: tuple[int | None, int]) -> None:
    assert assigned_row_id(own, is_data, 10, 50) == ids


@pytest.mark.parametrize(
    ("path", "age_days", "goes"),
    [
        ("warehouse/t/data/a.parquet", 2, True),
        ("warehouse/t/data/a.parquet", 0, False),
        ("warehouse/t/data/needed.parquet", 9, False),
        ("warehouse/t/other/needed.parquet", 9, False),
        ("warehouse/t/data/with%20blank.parquet", 9, False),
        ("warehouse/t/data/_started", 9, False),
        ("warehouse/t/data/.half", 9, False),
        ("warehouse/t/metadata/version-hint.text", 9, False),
    ],
)
def test_what_is_an_orphan(path: str, age_days: int, goes: bool) -> None:
    needed = {name for url in ("s3a://b/x/needed.parquet", "s3://b/with blank.parquet") for name in names_of(url)}
    listed = [ListedFile(path, 1, AT - timedelta(days=age_days))]
    assert bool(orphans(listed, needed, AT - timedelta(days=1))) is goes


def test_a_file_as_old_as_the_grace_time_stays() -> None:
    assert not orphans([ListedFile("warehouse/t/a", 1, AT)], set(), AT)


@pytest.mark.parametrize(
    ("since", "files"), [(0, ["c", "b", "a"]), (20, ["c", "b", "a"]), (21, ["c", "b"]), (30, ["c", "b"]), (31, ["c"]),
                         (40, ["c"]), (41, [])]
)  # fmt: skip
def test_metadata_that_was_current_lately(since: int, files: list[str]) -> None:
    """By the times of the files: those in the metadata may be of any clock."""
    log = [{"metadata-file": f"s3://b/t/{name}", "timestamp-ms": 0} for name in "abc"]
    table = history(LINE, {"main": 4}, **{"metadata-log": log, "last-updated-ms": 0})
    written = {name: AT + timedelta(seconds=at) for name, at in (("a", 10), ("b", 20), ("c", 30), ("d", 40))}
    found = recent_metadata(table, "s3://b/t/d", written, AT + timedelta(seconds=since))
    assert found == [f"s3://b/t/{name}" for name in files]
    del written["c"]  # then it is not known when the one before it was replaced
    found = recent_metadata(table, "s3://b/t/d", written, AT + timedelta(seconds=35))
    assert found == [f"s3://b/t/{name}" for name in "cb"]


def test_a_file_of_deletes_is_fetched_once_for_all_data_files_of_a_group() -> None:
    fetched: list[str] = []

    def fetch(url: str, size_max: int) -> bytes:
        fetched.append(url)
        return url.encode()

    files = _CapturedFiles(fetch, {"deletes"})
    for url in ("deletes", "data", "deletes", "data"):
        with files.new_input(url).open() as stream:
            assert stream.read() == url.encode()
    assert fetched == ["deletes", "data", "data"]
