"""`limpet index sql`: tables, JSON, CSV, Parquet, and what it refuses."""

from __future__ import annotations

import csv
import json
import subprocess
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import limpet
from cli.harness import Here, limpet_command
from limpet.kernel.runtime import system


@dataclass
class Site:
    """A site."""

    domain: str
    visits: int | None = None
    tags: list[str] | None = None


@dataclass
class Owner:
    """Who owns a site."""

    domain: str
    owner: str


@pytest.fixture(autouse=True)
def _fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet in memory with two indexes, one compiled, which commands find without a URL."""
    monkeypatch.setenv("LIMPET_URL", f"memory://{system().new_id()}")
    fleet = limpet.open()
    sites = fleet.index("sites", Site, key="domain")
    sites.put_many([Site("a.com", 9, ["x"]), Site("b.com", 10), Site("[red]c", None)])
    sites.compile(full=True)
    sites.put(Site("b.com", 11))
    fleet.index("site-owners", Owner, key="domain").put(Owner("b.com", "Bo"))


def test_a_table(here: Here) -> None:
    done = here("index", "sql", "select domain, visits, tags from sites order by visits nulls last")
    assert (done.code, done.err) == (0, "")
    assert [line.split() for line in done.out.splitlines()] == [
        ["domain", "visits", "tags"],
        ["a.com", "9", '["x"]'],
        ["b.com", "11", "null"],
        ["[red]c", "null", "null"],
    ]


def test_several_indexes(here: Here) -> None:
    done = here("index", "sql", 'select owner, visits from sites join "site-owners" using (domain)', "--json")
    assert json.loads(done.out) == [{"owner": "Bo", "visits": 11}]


def test_json_keeps_types(here: Here) -> None:
    query = (
        "select tags, visits, updated_at > '2020-01-01' as late, null as nothing, 1.5 as d, 1e300 as f, "
        "18446744073709551616::hugeint as huge, timestamptz '2026-01-02 03:04:05+00' as at from sites where visits = 9"
    )
    [row] = json.loads(here("index", "sql", query, "--json").out)
    assert row == {
        "tags": ["x"],
        "visits": 9,
        "late": True,
        "nothing": None,
        "d": 1.5,
        "f": 1e300,
        "huge": "18446744073709551616",
        "at": "2026-01-02T03:04:05Z",
    }


RISKY = ["=1+1", "+1", "-1", "@x", "\tx", "\rx", "'=x", "'tis", "plain", "", "a,b", 'q"q', "l\nl"]


def test_csv_holds_no_formula(here: Here) -> None:
    values = ", ".join(f"({number}, '{text.replace(chr(39), chr(39) * 2)}')" for number, text in enumerate(RISKY))
    done = here(
        "index", "sql", f'select n as "=n", -n as minus, t from (values {values}) v(n, t) order by n', "--csv", "-"
    )
    assert done.code == 0
    header, *rows = csv.reader(done.out.splitlines(keepends=True))
    assert header == ["'=n", "minus", "t"]
    assert [row[1] for row in rows] == [str(-number) for number in range(len(RISKY))]
    assert [row[2] for row in rows] == [
        "'=1+1", "'+1", "'-1", "'@x", "'\tx", "'\rx", "''=x", "'tis", "plain", "", "a,b", 'q"q', "l\nl"
    ]  # fmt: skip


def test_csv_of_every_kind(here: Here, tmp_path: Path) -> None:
    query = (
        "select null as a, '' as b, true as c, 1.50::decimal(5,2) as d, timestamptz '2026-01-02 03:04:05+00' as e, "
        "[1, 2] as f, date '2026-01-02' as g, interval '-1 day' as h"
    )
    done = here("index", "sql", query, "--csv", "out.csv")
    assert (done.code, done.out, done.err) == (0, "", "wrote 1 row to out.csv\n")
    lines = (tmp_path / "out.csv").read_bytes().decode().split("\n")
    assert lines == ["a,b,c,d,e,f,g,h", ""","",true,1.50,2026-01-02T03:04:05Z,"[1,2]",2026-01-02,'-P1D""", ""]


def test_parquet_keeps_types(here: Here, tmp_path: Path) -> None:
    done = here(
        "index", "sql", "select domain, visits, updated_at from sites order by domain", "--parquet", "o.parquet"
    )
    assert (done.code, done.err) == (0, "wrote 3 rows to o.parquet\n")
    table: Any = import_module("pyarrow.parquet").read_table(tmp_path / "o.parquet")
    assert [str(kind) for kind in table.schema.types] == ["string", "int64", "timestamp[us, tz=UTC]"]
    assert table.column("domain").to_pylist() == ["[red]c", "a.com", "b.com"]


@pytest.mark.parametrize("form", ["--csv", "--parquet"])
def test_what_cannot_be_written_is_one_line(here: Here, form: str) -> None:
    done = here("index", "sql", "select 1", form, "no/such/folder")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("limpet: cannot write ")
    assert len(done.err.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("select 1", "--json", "--csv", "-"), 2, "--json and --csv exclude each other"),
        (("select * from nope",), 2, "there is no index 'nope'"),
        (("drop view sites",), 2, "that is not one SELECT"),
        (("select * from read_text('/etc/passwd')",), 2, "a query may not call read_text()"),
        (("select 1 as a, 2 as a", "--json"), 2, "two columns are called 'a'"),
        (("select 1", "-u", "./typo"), 1, "there is no fleet at ./typo"),
        (("select 1", "--memory", "lots"), 2, "Parser Error: Memory must have a number"),
    ],
)
def test_errors_are_one_line_and_a_hint(here: Here, arguments: tuple[str, ...], code: int, said: str) -> None:
    done = here("index", "sql", *arguments)
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith(f"limpet: {said}")
    assert len(done.err.splitlines()) <= 2
    assert not Path("typo").exists()


def test_an_unknown_index_names_those_there_are(here: Here) -> None:
    assert here("index", "sql", "select * from site").err.endswith("hint: there is site-owners, sites\n")


def test_files_can_be_allowed(here: Here, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("domain,n\na.com,1\n")
    query = "select visits + n as sum from sites join 'mine.csv' using (domain)"
    assert here("index", "sql", query, "--json").code == 2
    assert json.loads(here("index", "sql", query, "--json", "--allow-files").out) == [{"sum": 10}]


def test_a_long_table_is_cut(here: Here) -> None:
    out = here("index", "sql", "select range as n from range(1200)").out.splitlines()
    assert out[-1] == "The first 500 of 1,200 rows; --csv or --json gives them all."
    assert len(out) == 1 + 500 + 2


def test_a_reader_that_goes_away_is_no_traceback(tmp_path: Path) -> None:
    limpet.open(tmp_path / "fleet").check()
    command = limpet_command(
        "index", "sql", "select range from range(200000)", "--csv", "-", "-u", str(tmp_path / "fleet")
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "range\n"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 1
