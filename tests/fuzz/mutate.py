"""Ways to damage a stored object: by its bytes, as JSON, as USV lines, as Parquet.

A mutation is known by its name alone, so a failure can be replayed by kind and name. Structural mutations of objects
that carry digests are re-signed by the kind (`resign`), as somebody with write access would do it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any

__all__ = ["BIG", "HUGE", "Mutation", "drawn_from", "flip", "json_mutations", "mutations_of"]

HUGE = "huge"
"""The name of the mutation that the store plays: an object of 3 GB, which must never be read whole."""
BIG = 2 << 20
DEEP = 100_000
FIELDS = 300_000
PATHS_MAX = 400

_VALUES: dict[str, bytes] = {
    "null": b"null",
    "true": b"true",
    "0": b"0",
    "-1": b"-1",
    "0.5": b"0.5",
    "1e300": b"1e300",
    "-1e300": b"-1e300",
    "1e999": b"1e999",
    "-1e8": b"-100000000",
    "2**53": b"9007199254740993",
    "2**63": b"9223372036854775808",
    "digits4400": b"9" * 4400,
    "nan": b"NaN",
    "text": b'"x"',
    "empty-text": b'""',
    "number-text": b'"7"',
    "list": b"[]",
    "list-null": b"[null]",
    "list-zero": b"[0]",
    "list-negative": b"[-1]",
    "object": b"{}",
    "object-odd": b'{"0":-100000000,"x":1}',
    "naive-time": b'"2026-01-02T03:04:05"',
    "year-1": b'"0001-01-01T00:00:00+23:59"',
    "year-9999": b'"9999-12-31T23:59:59-23:59"',
    "odd-zone": b'"2026-01-01T00:00:00+99:99"',
    "climb": b'"../../x"',
    "climb-part": b'"queues/q/parts/../x.json"',
    "list-climb": b'["queues/q/parts/../x.json"]',
    "escape": b'"\\u001b]0;owned\\u0007\\u009b31m\\n\\r"',
    "nul": b'"\\u0000"',
    "surrogate": b'"\\ud800"',
    "bidi": '"\u202eevil\u2066"'.encode(),
    "not-utf8": b'"\xff\xfe"',
    "raw-control": b'"\x1b[31m"',
    "long": b'"' + b"a" * 70_000 + b'"',
    "big": b'"' + b"b" * BIG + b'"',
    "deep": b"[" * DEEP + b"]" * DEEP,
    "deep700": b"[" * 700 + b"]" * 700,
    "deep-open": b"[" * DEEP,
    "many": b"[" + b",".join([b"0"] * 50_000) + b"]",
    "markup": b'"[red]x[/red][/bold]"',
}

_FIELDS: dict[str, bytes] = {
    "null": b"\\N",
    "empty": b"",
    "bad-escape": b"\\q",
    "half-escape": b"a\\",
    "not-utf8": b"\xff\xfe",
    "nul": b"\x00",
    "control": b"\x1b]0;owned\x07",
    "cr": b"a\rb",
    "1e999": b"1e999",
    "nan": b"nan",
    "digits4400": b"9" * 4400,
    "year-1": b"0001-01-01T00:00:00.000000Z",
    "year-9999": b"9999-12-31T23:59:59.999999Z",
    "naive-time": b"2026-01-02T03:04:05",
    "climb": b"../../x",
    "long": b"a" * 70_000,
    "minus": b"-1",
    "word": b"x",
    "formula": b"=1+1",
    "bidi": "\u202eevil".encode(),
}


@dataclass(frozen=True, slots=True)
class Mutation:
    """One way to damage an object. `signed`: digests that it carries are put right afterwards."""

    name: str
    apply: Callable[[bytes], bytes]
    signed: bool = False


def mutations_of(form: str, data: bytes, random: Random) -> tuple[list[Mutation], list[Mutation]]:
    """Those that every object of this form gets, and those of which some are drawn. Forms: json, jsonl, usv, parquet,
    raw."""
    fixed = [*_by_bytes()]
    drawn = [flip(random.randrange(1 << 30)) for _ in range(40)]
    match form:
        case "json":
            fixed += _whole_json()
            drawn += json_mutations(data)
        case "jsonl":
            drawn += _jsonl_mutations(data)
        case "usv":
            fixed += _whole_usv()
            drawn += _usv_mutations(data)
        case "parquet":
            drawn += _parquet_mutations(data)
    return fixed, drawn


# ---- bytes ----


def _by_bytes() -> Iterator[Mutation]:
    yield Mutation(HUGE, lambda data: data)
    yield Mutation("empty", lambda data: b"")
    yield Mutation("cut:half", lambda data: data[: len(data) // 2])
    yield Mutation("cut:last", lambda data: data[:-1])
    yield Mutation("cut:first", lambda data: data[1:])
    yield Mutation("bom", lambda data: b"\xef\xbb\xbf" + data)
    yield Mutation("utf16", lambda data: data.decode("latin-1").encode("utf-16"))
    yield Mutation("zeros", lambda data: b"\x00" * len(data))
    yield Mutation("extend:junk", lambda data: data + b"\x00\xff{}")
    yield Mutation("extend:big", lambda data: data + b" " * BIG)
    yield Mutation("twice", lambda data: data + data)
    yield Mutation("not-utf8", lambda data: data[: len(data) // 2] + b"\xff\xfe" + data[len(data) // 2 :])
    yield Mutation("newlines", lambda data: b"\n" * 1000)


def flip(seed: int) -> Mutation:
    def apply(data: bytes) -> bytes:
        random, changed = Random(seed), bytearray(data)
        for _ in range(random.choice((1, 1, 1, 3, 20))):
            if changed:
                changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
        return bytes(changed)

    return Mutation(f"flip:{seed}", apply)


# ---- JSON ----


@dataclass(slots=True)
class _Object:
    pairs: list[tuple[bytes, Any]]


def _parse(data: bytes) -> Any:
    def pairs(found: list[tuple[str, Any]]) -> _Object:
        return _Object([(json.dumps(key).encode(), value) for key, value in found])

    return json.loads(data, object_pairs_hook=pairs, parse_int=str.encode, parse_float=str.encode)


def _text(node: Any) -> bytes:
    match node:
        case _Object(pairs):
            return b"{" + b",".join(key + b":" + _text(value) for key, value in pairs) + b"}"
        case list():
            return b"[" + b",".join(map(_text, node)) + b"]"
        case bytes():
            return node
        case _:
            return json.dumps(node, ensure_ascii=False).encode(errors="surrogatepass")


Path = tuple[int, ...]
"""The way to a value: the number of a pair or of an element at each level."""


def _paths(node: Any, here: Path = (), said: str = "$") -> Iterator[tuple[Path, str]]:
    match node:
        case _Object(pairs):
            for n, (key, value) in enumerate(pairs):
                yield (*here, n), f"{said}.{json.loads(key)}"
                yield from _paths(value, (*here, n), f"{said}.{json.loads(key)}")
        case list():
            for n, value in enumerate(node):
                yield (*here, n), f"{said}[{n}]"
                yield from _paths(value, (*here, n), f"{said}[{n}]")


def _changed(node: Any, path: Path, change: Callable[[Any, int], Any]) -> Any:
    """A copy of `node`; `change` gets the container of the last step and its number, and returns another container."""
    if len(path) == 1:
        return change(node, path[0])
    if isinstance(node, _Object):
        pairs = [*node.pairs]
        key, value = pairs[path[0]]
        pairs[path[0]] = (key, _changed(value, path[1:], change))
        return _Object(pairs)
    items = [*node]
    items[path[0]] = _changed(items[path[0]], path[1:], change)
    return items


def _set(value: bytes) -> Callable[[Any, int], Any]:
    def change(node: Any, n: int) -> Any:
        if isinstance(node, _Object):
            return _Object([(key, value if i == n else old) for i, (key, old) in enumerate(node.pairs)])
        return [value if i == n else old for i, old in enumerate(node)]

    return change


def _drop(node: Any, n: int) -> Any:
    if isinstance(node, _Object):
        return _Object([pair for i, pair in enumerate(node.pairs) if i != n])
    return [item for i, item in enumerate(node) if i != n]


def _double(node: Any, n: int) -> Any:
    """The same key once more, with another value; of a list, the same element a thousand times."""
    if isinstance(node, _Object):
        return _Object([*node.pairs, (node.pairs[n][0], b"-1")])
    return [*node, *[node[n]] * 1000]


def _rename(node: Any, n: int) -> Any:
    if isinstance(node, _Object):
        key = b'"\\u001b[31m' + node.pairs[n][0][1:]
        return _Object([(key, old) if i == n else pair for i, pair in enumerate(node.pairs) for old in [pair[1]]])
    return [*node][::-1]


def _whole_json() -> Iterator[Mutation]:
    for name in ("null", "0", "list", "object", "text", "deep", "deep700", "deep-open", "digits4400", "big"):
        yield Mutation(f"whole={name}", lambda data, value=_VALUES[name]: value)  # type: ignore[misc]


def json_mutations(data: bytes, *, prefix: str = "") -> Iterator[Mutation]:
    """Every value of the document replaced by each odd one; every key dropped, doubled, renamed."""
    for path, said in islice(_paths(_parse(data)), PATHS_MAX):
        for name, value in _VALUES.items():
            yield _at(f"{prefix}{said}={name}", path, _set(value))
        yield _at(f"{prefix}{said}:drop", path, _drop)
        yield _at(f"{prefix}{said}:double", path, _double)
        yield _at(f"{prefix}{said}:rename", path, _rename)


def _at(name: str, path: Path, change: Callable[[Any, int], Any]) -> Mutation:
    return Mutation(name, lambda data: _text(_changed(_parse(data), path, change)), signed=True)


def _jsonl_mutations(data: bytes) -> Iterator[Mutation]:
    """As `json_mutations`, for each line; and lines that go, come twice or change places."""
    lines = data.split(b"\n")
    for n, line in enumerate(lines):
        if not line:
            continue
        for inner in json_mutations(line, prefix=f"#{n}."):
            yield Mutation(inner.name, _in_line(n, inner.apply), signed=True)
        for name in ("deep", "deep700", "not-utf8", "null", "digits4400", "big", "escape", "empty-text"):
            yield Mutation(f"#{n}={name}", _in_line(n, lambda _, value=_VALUES[name]: value), signed=True)  # type: ignore[misc]
        yield Mutation(f"#{n}:drop", _of_lines(lambda all_, n=n: all_[:n] + all_[n + 1 :]), signed=True)  # type: ignore[misc]
        yield Mutation(f"#{n}:double", _of_lines(lambda all_, n=n: [*all_, all_[n]]), signed=True)  # type: ignore[misc]
    yield Mutation("lines:reversed", _of_lines(lambda all_: all_[::-1]))
    yield Mutation("lines:crlf", lambda found: found.replace(b"\n", b"\r\n"))


def _in_line(n: int, apply: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        lines = data.split(b"\n")
        lines[n] = apply(lines[n])
        return b"\n".join(lines)

    return change


def _of_lines(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[bytes], bytes]:
    return lambda data: b"\n".join(change(data.split(b"\n")))


# ---- USV ----


def _whole_usv() -> Iterator[Mutation]:
    yield Mutation("fields:300000", lambda data: _first_line(data) + b"\x1fx" * FIELDS + b"\n")
    yield Mutation("fields:empty300000", lambda data: b"\x1f" * FIELDS + b"\n")
    yield Mutation("lines:100000", lambda data: b"\n" * DEEP)
    yield Mutation("line:2MB", lambda data: b"x" * BIG)
    yield Mutation("no-newline", lambda data: data.rstrip(b"\n"))
    yield Mutation("line-end", lambda data: data[: data.find(b"\n", len(data) // 2) + 1])


def _first_line(data: bytes) -> bytes:
    return data.partition(b"\n")[0]


def _usv_mutations(data: bytes) -> Iterator[Mutation]:
    lines = data.rstrip(b"\n").split(b"\n")
    for n, line in enumerate(lines[:5]):
        for f in range(line.count(b"\x1f") + 1):
            for name, value in _FIELDS.items():
                yield Mutation(f"#{n}.{f}={name}", _in_line(n, _field(f, value)))
            yield Mutation(f"#{n}.{f}:drop", _in_line(n, _fields(lambda all_, f=f: all_[:f] + all_[f + 1 :])))  # type: ignore[misc]
            yield Mutation(f"#{n}.{f}:double", _in_line(n, _fields(lambda all_, f=f: all_[:f] + all_[f:] + [all_[f]])))  # type: ignore[misc]
        yield Mutation(f"#{n}:drop", _of_lines(lambda all_, n=n: all_[:n] + all_[n + 1 :]))  # type: ignore[misc]
        yield Mutation(f"#{n}:double", _of_lines(lambda all_, n=n: all_[: n + 1] + all_[n:]))  # type: ignore[misc]
    yield Mutation("lines:reversed", _of_lines(lambda all_: [*all_[-2::-1], b""]))


def _fields(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[bytes], bytes]:
    return lambda line: b"\x1f".join(change(line.split(b"\x1f")))


def _field(f: int, value: bytes) -> Callable[[bytes], bytes]:
    return _fields(lambda all_: [value if i == f else old for i, old in enumerate(all_)])


# ---- Parquet ----


def _parquet_mutations(data: bytes) -> Iterator[Mutation]:
    from pyarrow import parquet as pq  # type: ignore[import-untyped]

    table = pq.read_table(io.BytesIO(data))
    for column in table.column_names:
        yield Mutation(f"{column}:drop", _of_table(lambda found, c=column: found.drop_columns([c])), signed=True)  # type: ignore[misc]
        yield Mutation(f"{column}:null", _of_table(lambda found, c=column: _filled(found, c, None)), signed=True)  # type: ignore[misc]
        for value in (-1, 1e300, "x", "", "[" * 3000, "\x1b]0;owned\x07", b"\xff", [1], "../x", "9" * 5000):
            name = f"{column}={str(value)[:12]!r}"
            yield Mutation(name, _of_table(lambda found, c=column, v=value: _filled(found, c, v)), signed=True)  # type: ignore[misc]
    yield Mutation("rows:none", _of_table(lambda found: found.slice(0, 0)), signed=True)
    yield Mutation("rows:twice", _of_table(_twice), signed=True)
    yield Mutation("rows:bomb", _of_table(_bomb), signed=True)
    yield Mutation("columns:none", _of_table(lambda found: found.select([])), signed=True)


def _of_table(change: Callable[[Any], Any]) -> Callable[[bytes], bytes]:
    def apply(data: bytes) -> bytes:
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        out = io.BytesIO()
        pq.write_table(change(pq.read_table(io.BytesIO(data))), out, compression="zstd")
        return out.getvalue()

    return apply


def _filled(table: Any, column: str, value: Any) -> Any:
    import pyarrow as pa

    at = table.column_names.index(column)
    kind = table.schema.field(column).type if value is None else None
    return table.set_column(at, column, pa.array([value] * table.num_rows, type=kind))


def _twice(table: Any) -> Any:
    import pyarrow as pa

    return pa.concat_tables([table, table])


def _bomb(table: Any) -> Any:
    """Three million equal rows: a few kilobytes on disk."""
    return table.take([0] * 3_000_000) if table.num_rows else table


def drawn_from(mutations: Sequence[Mutation], number: int, random: Random) -> list[Mutation]:
    """Some of them, in an order that the seed decides."""
    return random.sample(mutations, min(number, len(mutations)))
