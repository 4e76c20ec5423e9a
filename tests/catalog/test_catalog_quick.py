"""Commits on plain JSON give what PyIceberg's own updates give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from limpet import records
from limpet.catalog.commit import TableCommit, _heavy_commit, apply, parse_commit
from limpet.catalog.iceberg import updates as iceberg
from limpet.catalog.state import CommitFailed
from limpet.catalog.warehouse import Document, Warehouse
from limpet.errors import Invalid
from limpet.runtime import system
from limpet.store import MemoryStore
from support.catalog import table

IDS = st.integers(1, 5)
REFS = st.sampled_from(["main", "wip", "v1"])
NUMBERS = st.sampled_from(["1", "2", "3", "x"])
QUICK = st.one_of(
    st.builds(lambda id_, number: ("add-snapshot", id_, number), IDS, st.integers(0, 3)),
    st.builds(
        lambda name, kind, id_, keep: {
            "action": "set-snapshot-ref",
            "ref-name": name,
            "type": kind,
            "snapshot-id": id_,
            **({"min-snapshots-to-keep": keep} if keep is not None else {}),
        },
        REFS,
        st.sampled_from(["branch", "branch", "tag"]),
        IDS,
        st.sampled_from([None, None, 0, 2]),
    ),
    st.builds(lambda name: {"action": "remove-snapshot-ref", "ref-name": name}, REFS),
    st.builds(lambda ids: {"action": "remove-snapshots", "snapshot-ids": ids}, st.lists(IDS, max_size=3)),
    st.builds(
        lambda x, number: {"action": "set-properties", "updates": {**x, **number}},
        st.dictionaries(st.sampled_from("xy"), st.sampled_from("12"), max_size=2),
        st.dictionaries(st.just("write.metadata.previous-versions-max"), NUMBERS, max_size=1),
    ),
    st.builds(
        lambda names: {"action": "remove-properties", "removals": names},
        st.lists(st.sampled_from(["x", "y", "write.metadata.previous-versions-max"]), max_size=3),
    ),
)


@given(st.lists(st.lists(QUICK, max_size=4), max_size=6))
@example(
    [[("add-snapshot", 1, 1), {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 1}]]
)
@example([[("add-snapshot", 1, 1), *2 * [{"action": "remove-snapshots", "snapshot-ids": [1]}]]])
@settings(deadline=None)
def test_the_quick_way_does_what_pyiceberg_does(commits: list[list[Any]]) -> None:
    warehouse = Warehouse(MemoryStore(system()), "s3://bucket", system())
    quick = slow = iceberg.new_table(table(), warehouse.location("a/t"), warehouse.new_uuid(), 1_700_000_000_000)
    for n, given_ in enumerate(commits):
        number = metadata_of(quick).get("last-sequence-number", 0)
        updates = [made_snapshot(each, number) if isinstance(each, tuple) else each for each in given_]
        try:
            parsed = parse_commit({"updates": updates})
        except Invalid:
            continue
        assert parsed.plain is not None
        ours = outcome(quick, parsed, n)
        theirs = outcome(slow, replace(parsed, plain=None), n)
        if isinstance(ours, type) and len(updates) > 1:
            assert isinstance(theirs, type), "of several mistakes each finds another one first"
            continue
        if isinstance(ours, type) or ours is None:
            assert ours == theirs
            continue
        assert isinstance(theirs, Document)
        assert timeless(ours) == timeless(theirs)
        quick, slow = ours, theirs
        slow.model = None
    assert timeless(quick) == timeless(slow)


def made_snapshot(what: tuple[str, int, int], number: int) -> dict[str, Any]:
    action, id_, more = what
    fields = {
        "snapshot-id": id_,
        "sequence-number": number + more,
        "timestamp-ms": 1_700_000_000_000 + id_,
        "manifest-list": f"s3://bucket/warehouse/a/t/{id_}.avro",
        "summary": {"operation": "append"},
        **({"parent-snapshot-id": id_ - 1} if id_ > 1 else {}),
    }
    return {"action": action, "snapshot": fields}


def outcome(document: Document, commit: TableCommit, n: int) -> Document | type | None:
    try:
        return apply(document, commit, f"s3://bucket/{n}", 1_794_000_000_000)
    except (CommitFailed, Invalid) as error:
        return type(error)


def metadata_of(document: Document) -> dict[str, Any]:
    found: dict[str, Any] = records.parse_json(document.data, what="metadata")
    return found


def timeless(document: Document) -> Any:
    """The metadata, without the times of its commits: those of PyIceberg are the clock's."""

    def without(value: Any) -> Any:
        match value:
            case dict():
                return {key: without(each) for key, each in value.items()}
            case list():
                return [without(each) for each in value]
            case int() if value > 1_750_000_000_000:
                return "now"
        return value

    return without(metadata_of(document))


def test_metadata_that_another_program_wrote_goes_by_pyiceberg() -> None:
    """It may leave out what we always write, or write it in another way."""
    warehouse = Warehouse(MemoryStore(system()), "s3://bucket", system())
    base = metadata_of(iceberg.new_table(table(), warehouse.location("a/t"), warehouse.new_uuid(), 1_700_000_000_000))
    first = made_snapshot(("", 1, 1), 0)["snapshot"]
    others: list[dict[str, Any]] = [
        {key: value for key, value in base.items() if key not in ("refs", "statistics", "properties")},
        {**base, "current-snapshot-id": -1},
        {**base, "last-sequence-number": "0"},
        {**base, "snapshots": [first], "current-snapshot-id": 1, "last-sequence-number": 1},
    ]
    for other in others:
        number = int(other["last-sequence-number"])
        main = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 2}
        tip = {
            "type": "assert-ref-snapshot-id",
            "ref": "main",
            "snapshot-id": 1 if "snapshots" in other and number else None,
        }
        commit = parse_commit({"requirements": [tip], "updates": [made_snapshot(("add-snapshot", 2, 1), number), main]})
        document = Document(records.encode(other))
        after = apply(document, commit, "s3://bucket/0", 1)
        assert document.is_plain is False
        assert after is not None
        assert metadata_of(after)["refs"]["main"]["snapshot-id"] == 2
        assert metadata_of(after)["last-sequence-number"] == number + 1


def test_the_time_of_a_table_does_not_go_back() -> None:
    """A commit's time is taken before it waits for the leader, so a later commit may have an earlier one."""
    request = {"name": "t", "schema": {"type": "struct", "schema-id": 0, "fields": []}}
    document = iceberg.new_table(request, "s3://bucket/warehouse/a/t", "9c12d441-03fe-4693-9a96-a0705ddf69c1", 2_000)
    commit = parse_commit({"updates": [{"action": "set-properties", "updates": {"a": "1"}}]})
    after = apply(document, commit, "s3://bucket/0", 1_000)
    assert after is not None
    assert after.is_plain
    assert metadata_of(after)["last-updated-ms"] == 2_000


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 3), st.just(1 << 63), st.just(1.0), st.just("1"), st.just([1])
)
FIELDS = ("snapshot-id", "parent-snapshot-id", "parent_snapshot_id", "sequence-number", "timestamp-ms", "schema-id",
          "first-row-id", "manifest-list", "summary", "ref-name", "type", "min-snapshots-to-keep", "max-ref-age-ms",
          "snapshot-ids", "removals", "updates", "action", "else")  # fmt: skip
SUMMARIES = st.dictionaries(
    st.sampled_from(["operation", "self", "x", "y"]), st.one_of(ODD, st.sampled_from(["append", "delete", "none"]))
)
REQUIREMENTS = st.one_of(
    st.builds(lambda ref, id_: {"type": "assert-ref-snapshot-id", "ref": ref, "snapshot-id": id_}, REFS, ODD),
    st.builds(lambda name, id_: {"type": f"assert-{name}", name: id_}, st.sampled_from(
        ["last-assigned-field-id", "current-schema-id", "last-assigned-partition-id", "default-spec-id",
         "default-sort-order-id", "nothing"]), ODD),
    st.builds(lambda uuid: {"type": "assert-table-uuid", "uuid": uuid}, st.sampled_from(
        ["9c12d441-03fe-4693-9a96-a0705ddf69c1", "9C12D441-03FE-4693-9A96-A0705DDF69C1",
         "9c12d44103fe46939a96a0705ddf69c1", "none", None])),
)  # fmt: skip


@given(
    st.lists(QUICK, min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(FIELDS), st.one_of(ODD, SUMMARIES)), max_size=2),
    st.lists(REQUIREMENTS, max_size=2),
)
@settings(deadline=None)
def test_a_commit_is_parsed_as_pyiceberg_parses_it(
    wanted: list[Any], odd: list[tuple[int, str, Any]], requirements: list[Any]
) -> None:
    updates = [made_snapshot(each, 0) if isinstance(each, tuple) else dict(each) for each in wanted]
    for n, name, value in odd:
        update = updates[n % len(updates)]
        (update["snapshot"] if isinstance(update.get("snapshot"), dict) else update)[name] = value
    try:
        parsed = parse_commit({"updates": updates, "requirements": requirements})
    except Invalid:
        return
    theirs = _heavy_commit(parsed.asked, parsed.required)
    assert parsed.plain == theirs.plain
    ours_, theirs_ = (
        [{name: value for name, value in each.items() if value is not None} for each in one.requirements]
        for one in (parsed, theirs)
    )
    assert ours_ == theirs_, "but for null, which is as good as nothing"
    assert records.encode(parsed.plain) == records.encode(theirs.plain), "in the same order"
    assert (parsed.files, parsed.properties) == (theirs.files, theirs.properties)


def test_what_pyiceberg_sends_needs_no_pyiceberg() -> None:
    main = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 1}
    tip = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None}
    uuid = {"type": "assert-table-uuid", "uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1"}
    updates = [made_snapshot(("add-snapshot", 1, 1), 0), main, {"action": "set-properties", "updates": {"a": 1}}]
    parsed = parse_commit({"updates": updates, "requirements": [tip, uuid]})
    assert parsed.is_light
    assert parsed.parsed is None, "nothing was asked of PyIceberg"
