"""Messages count and choose articles by one function each, and answer names that are not known by one table."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from unittest.mock import create_autospec

import pytest

import limpet
from limpet.cli import parser
from limpet.cli.parse import Group
from limpet.kernel.answers import UnknownName
from limpet.kernel.foreign import WORDS, ours_for, plain
from limpet.kernel.wording import an, listed, many, nearest

SOURCE = Path(limpet.__file__).parent


@pytest.mark.parametrize(
    ("count", "one", "more", "said"),
    [
        (0, "task", None, "0 tasks"),
        (1, "task", None, "1 task"),
        (2, "task", None, "2 tasks"),
        (1, "batch", "batches", "1 batch"),
        (2000, "batch", "batches", "2,000 batches"),
    ],
)
def test_many(count: int, one: str, more: str | None, said: str) -> None:
    assert many(count, one, more) == said


ARTICLES = (
    "a cell, an object, an int, a list, a URL, an hour, a UUID, an index, a `dict`, an 'array', an s3, a union, a gs"
)


@pytest.mark.parametrize("said", ARTICLES.split(", "))
def test_an(said: str) -> None:
    assert an(said.partition(" ")[2]) == said


NO_COUNT = {"is", "was", "has", "does", "this", "as", "its", "needs", "says", "exists", "times", "bytes"}
PLURAL = re.compile(r" (?:more |new |empty |whole )?([a-z]{3,}s)\b")
FIXED = re.compile(r"[A-Z][A-Z0-9_]*\b|n \* 5$")
"""A limit, which is never 1."""
VERBS = {"belongs", "claims", "comes", "continues", "costs", "ends", "gathered", "gets", "goes", "holds", "implies"}
VERBS |= {"answers", "lacks", "leads", "lives", "listens", "looks", "means", "names", "never", "overlaps", "reads"}
VERBS |= {"configures", "contains", "refers", "refuses", "rejects", "requires", "shows", "starts", "still", "uses"}
VERBS |= {
    "waits",
    "wants",
    "writes",
    "yields",
    "fails",
    "keeps",
    "gives",
    "takes",
    "without",
    "makes",
    "lets",
    "seconds",
    "stops",
}
MEASURED = {
    "queue/steps.py": "the name of a recorded step",
    "demo/report.py": "a column",
    "cli/queue.py": "a rate",
    "cli/__init__.py": "days, of which there are two at least",
}
"""Where a plural stands whatever the number is: one is stored, one is a column, one is a bound above 100."""


def _counts(path: Path) -> Iterator[str]:
    """The plurals behind a value in the f-strings of a module that `many` has not made."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for value, text in pairwise(node.values if isinstance(node, ast.JoinedStr) else []):
            if isinstance(value, ast.FormattedValue) and isinstance(text, ast.Constant):
                noun = PLURAL.match(str(text.value))
                said = ast.unparse(value.value)
                if noun and noun[1] not in NO_COUNT | VERBS and not FIXED.match(said) and "many(" not in said:
                    yield f"{said} {noun[1]}"


def test_no_message_counts_by_itself() -> None:
    found = {str(path.relative_to(SOURCE)): [*_counts(path)] for path in SOURCE.rglob("*.py")}
    assert {name: counts for name, counts in found.items() if counts and name not in MEASURED} == {}


def test_no_message_puts_an_article_before_a_type() -> None:
    typed = re.compile(r"\b[Aa]n? \{(?:type\([^}]*|[a-z.]*kind)\.__name__")
    assert [str(path) for path in SOURCE.rglob("*.py") if typed.search(path.read_text(encoding="utf-8"))] == []


def test_near_names() -> None:
    assert (nearest("retrys", ["retry", "ls"]), nearest("ENRCH", ["Enrich"]), nearest("x", ["retry"])) == (
        "retry",
        "Enrich",
        None,
    )
    assert (listed([]), listed(["a"]), listed(["a", "b"], 1)) == ("", "there is a", "there is a ...")
    assert listed(["a b", "\x1b[31m"]) == r"there is a b, '\x1b[31m'"


ISSUE = """.delay .apply_async .s countdown= eta= priority= rate_limit= max_retries= bind= soft_time_limit= time_limit=
.send_task .enqueue .enqueue_in .schedule .send .send_with_options message_group_id= VisibilityTimeout="""


def test_each_word_of_other_systems_is_answered() -> None:
    assert all(ours_for(word) for word in ISSUE.split())
    words = [word for row in WORDS for word in f"{row.celery} {row.others}".split()]
    assert all(re.fullmatch(r"\.?[\w-]+=?|--?[\w-]+", word) for word in words)
    assert ours_for("timeout=", ["wait_s"]) == "`wait_s=10`"
    assert ours_for("timeout=", ["timeout_s"]) != ours_for("timeout=", ["wait_s"])


def test_the_answers_name_what_there_is() -> None:
    """A command that an answer names, and an option of `limpet work`, is one."""
    top = parser()
    work = top.get_command(None, "work")
    assert work is not None
    options = {name for each in work.params for name in each.opts}
    for row in WORDS:
        for code in re.findall(r"`([^`]+)`", plain(row.ours)):
            words = code.split()
            if words[0] == "limpet" and words[1:] and not words[1].startswith("-") and words[1].islower():
                command = top.get_command(None, words[1])
                assert command is not None, code
                if isinstance(command, Group):
                    assert command.get_command(None, words[2]), code
            elif words[0].startswith("-") and words[0] not in ("--delay", "--id"):
                assert {word for word in words if word.startswith("-")} <= options, code


def test_an_unknown_attribute_is_an_attribute_error() -> None:
    fleet = limpet.open("memory://")

    @fleet.task("enrich")
    def enrich(domain: str) -> str:
        return domain

    pushed = enrich.push("a.com")
    for thing in (enrich, fleet, enrich.queue, pushed, pushed.id, pushed.result()):
        assert not hasattr(thing, "apply_async")
        assert getattr(thing, "_none_", None) is None
    assert deepcopy(pushed) == pickle.loads(pickle.dumps(pushed)) == pushed
    assert not hasattr(create_autospec(enrich), "delay")
    with pytest.raises(UnknownName) as raised:
        enrich.delay  # type: ignore[attr-defined] # noqa: B018
    back = pickle.loads(pickle.dumps(raised.value))
    assert "task.push(...)" in str(back) == str(raised.value)
    assert "task.push" not in raised.value.args[0], "it is looked up when it is shown"


def test_an_error_in_a_property_is_not_hidden() -> None:
    class Broken(limpet.TaskFunction[..., None]):
        @property
        def name(self) -> str:
            raise AttributeError("of another object")

    with pytest.raises(AttributeError, match="of another object"):
        _ = Broken.__new__(Broken).name
