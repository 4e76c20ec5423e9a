"""Manifests that no writer of tables wrote: refused at once, without a crash, and with little memory."""

from __future__ import annotations

import bz2
import json
import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS, write_manifest_list
from pyiceberg.utils.schema_conversion import AvroSchemaConversion
from pyroaring import BitMap

from limpet.catalog.iceberg.avro import UNREADABLE, AvroBudget, manifests_in
from limpet.catalog.iceberg.deletes import vector_positions
from limpet.catalog.iceberg.models import Input, Output
from sim.deletes import sealed_vector as vector

SYNC = b"s" * 16
SCHEMA: Any = AvroSchemaConversion().iceberg_to_avro(MANIFEST_LIST_FILE_SCHEMAS[2], "manifest_file")
ZEROS = bytes(200 << 20)
PEAK_MAX = 220 << 20
"""The 64 MiB that may be unpacked, as the codecs allocate them, and the packed bytes."""


def number(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


def text(value: bytes) -> bytes:
    return number(len(value)) + value


def file(*blocks: tuple[int, bytes], schema: Any = SCHEMA, codec: str = "null") -> bytes:
    """An Avro file; each block has a number of records and its bytes."""
    said = schema if isinstance(schema, bytes) else json.dumps(schema).encode()
    head = b"Obj\x01" + number(2) + text(b"avro.schema") + text(said) + text(b"avro.codec") + text(codec.encode())
    return head + number(0) + SYNC + b"".join(number(count) + text(data) + SYNC for count, data in blocks)


def with_field(kind: Any) -> Any:
    """The schema with one more field before the others, which a reader skips."""
    return {**SCHEMA, "fields": [{"name": "more", "type": kind, "field-id": 9000}, *SCHEMA["fields"]]}


def nested(depth: int) -> Any:
    kind: Any = "int"
    for _ in range(depth):
        kind = {"type": "array", "items": kind, "element-id": 9001}
    return kind


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


LIST_OF_NOTHING = {"type": "array", "items": {"type": "record", "name": "r", "fields": []}, "element-id": 9001}
LIST_OF_INTS = {"type": "array", "items": "int", "element-id": 9001}
HOSTILE: dict[str, Callable[[], bytes]] = {
    "a deflate bomb": lambda: file((1, deflated(ZEROS)), codec="deflate"),
    "a bzip2 bomb": lambda: file((1, bz2.compress(ZEROS)), codec="bzip2"),
    "a zstandard bomb": lambda: file((1, zstandard.compress(ZEROS)), codec="zstandard"),
    "a hundred blocks that are large together": lambda: file(
        *[(0, deflated(ZEROS[: 1 << 20]))] * 100, (1, b""), codec="deflate"
    ),
    "no deflate": lambda: file((1, b"\xff" * 100), codec="deflate"),
    "no zstandard": lambda: file((1, b"\xff" * 100), codec="zstandard"),
    "another codec": lambda: file((1, b"x"), codec="snappy"),
    "more records than bytes": lambda: file((1 << 40, b"")),
    "a text of negative length": lambda: file((1, number(-5) + b"x" * 100)),
    "a text longer than the file": lambda: file((1, number(1 << 40) + b"x")),
    "a number without an end": lambda: file((1, b"\xff" * 1000)),
    "a list whose items take no byte": lambda: file((1, number(1 << 40)), schema=with_field(LIST_OF_NOTHING)),
    "a list of nulls": lambda: file(
        (1, number(1 << 40)), schema=with_field({"type": "array", "items": "null", "element-id": 9001})
    ),
    "a list that leads back": lambda: file((1, number(-1) + number(-4) + b"x" * 9), schema=with_field(LIST_OF_INTS)),
    "a list that leads out": lambda: file((1, number(-1) + number(1 << 50)), schema=with_field(LIST_OF_INTS)),
    "five million values": lambda: file((1, number(5_000_000) + bytes(5_000_000)), schema=with_field(LIST_OF_INTS)),
    "a deep schema": lambda: file(schema=b"[" * 100_000),
    "a schema with many levels": lambda: file(schema=with_field(nested(60))),
    "a large schema": lambda: file(schema=b" " * (2 << 20) + b"{}"),
    "a schema of other things": lambda: file(schema={"type": "record", "name": "x", "fields": []}),
    "no schema": lambda: file(schema=b"7"),
    "a block that ends elsewhere": lambda: file((0, b""), (1, b"x")).replace(SYNC, b"t" * 16, 2),
    "nothing": lambda: b"",
    "a header that is cut": lambda: file()[:40],
    "a block that is cut": lambda: file((0, b"x" * 100))[:-20],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_manifest_is_refused_and_cheap(name: str) -> None:
    data = HOSTILE[name]()
    tracemalloc.start()
    try:
        with pytest.raises(UNREADABLE):
            list(manifests_in(Input("x.avro", lambda *_: data), AvroBudget()))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < PEAK_MAX


def test_many_manifests_have_one_budget() -> None:
    budget = AvroBudget()
    large = file((0, deflated(ZEROS[: 40 << 20])), codec="deflate")
    list(manifests_in(Input("x.avro", lambda *_: large), budget))
    with pytest.raises(ValueError, match="more than 67108864 bytes"):
        list(manifests_in(Input("x.avro", lambda *_: large), budget))


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "zstandard"])
def test_an_ordinary_list_is_read_whatever_it_is_packed_with(codec: Any) -> None:
    written = Output("x.avro")
    with write_manifest_list(2, written, 7, None, 1, codec):
        pass
    assert list(manifests_in(Input("x.avro", lambda *_: written.data), AvroBudget())) == []


@given(
    st.sets(st.integers(0, 300_000), max_size=50),
    st.lists(st.tuples(st.integers(0, 300_000), st.integers(1, 70_000)), max_size=3),
    st.booleans(),
)
def test_a_deletion_vector_has_the_positions_of_the_reference(
    some: set[int], spans: list[tuple[int, int]], with_runs: bool
) -> None:
    """Lists, bits and runs, in any number of containers, beside the library that PyIceberg uses."""
    bitmap = BitMap(some)
    for start, length in spans:
        bitmap.add_range(start, start + length)
    bitmap |= BitMap(n for n in range(0, 20_000, 2) if len(some) % 2)
    if with_runs:
        bitmap.run_optimize()
    assert vector_positions(vector(bitmap.serialize()), 400_000) == [*bitmap]


def test_a_vector_without_positions() -> None:
    body = bytes.fromhex("d1d33964") + bytes(8)
    assert vector_positions(struct.pack(">I", 12) + body + struct.pack(">I", zlib.crc32(body)), 9) == []


def test_a_damaged_deletion_vector_is_refused() -> None:
    bitmap = BitMap([1, 5, 70_000])
    bitmap.add_range(100_000, 110_000)
    bitmap.run_optimize()
    sound, rng = vector(bitmap.serialize()), random.Random(0)
    for at in range(len(sound)):
        with pytest.raises(ValueError, match="deletion vector"):
            vector_positions(sound[:at], 200_000)
        changed = bytearray(sound)
        changed[at] ^= rng.randrange(1, 256)
        with pytest.raises(ValueError, match="deletion vector"):
            vector_positions(bytes(changed), 200_000)


RUN = struct.pack("<H", 1) + struct.pack("<HH", 0, 65_535)


@pytest.mark.parametrize(
    "blob",
    [
        vector(BitMap([9]).serialize()),
        vector(BitMap([1]).serialize(), key=1),
        vector(BitMap([1]).serialize(), count=2),
        vector(BitMap([1]).serialize(), count=1 << 40),
        vector(struct.pack("<I", 12_345) + bytes(100)),
        vector(struct.pack("<II", 12_346, 1 << 31) + bytes(100)),
        vector(struct.pack("<I", 12_347 | 65_535 << 16) + b"\xff" * 8192),
        vector(struct.pack("<I", 12_347) + b"\x01" + struct.pack("<HH", 0, 9) + RUN),
        vector(struct.pack("<I", 12_347) + b"\x01" + struct.pack("<HHH", 0, 9, 9) + struct.pack("<HH", 0, 65_535) * 9),
        vector(struct.pack("<IIHHI", 12_346, 1, 0, 1, 0) + struct.pack("<HH", 5, 3)),
        vector(struct.pack("<IIHHI", 12_346, 1, 0, 1, 0) + struct.pack("<HH", 5, 5)),
        vector(struct.pack("<IIHHHH", 12_346, 2, 0, 0, 0, 0) + bytes(8) + struct.pack("<HH", 5, 3)),
    ],
)
def test_a_deletion_vector_that_no_program_wrote_is_refused(blob: bytes) -> None:
    """It has valid checksums. Positions beyond the rows of the file, twice, or unordered are refused."""
    with pytest.raises(ValueError, match="deletion vector"):
        vector_positions(blob, 9)
