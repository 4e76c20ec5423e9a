"""How messages count, choose an article, and answer a name that does not exist. Pure functions of texts."""

from __future__ import annotations

from collections.abc import Collection, Iterable

NAMES_SHOWN = 16
SOUNDS_OPEN = ("hour", "honest", "s3", "sqs")
SOUNDS_YOU = ("uni", "use", "uu", "uri", "url", "one", "eu")
"""How words begin whose first letter is a vowel, and whose first sound is none; before it the other way round."""


def many(count: float, one: str, more: str | None = None) -> str:
    """`1 task`, `2 tasks`; `more` is a plural that does not end with one s more."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def an(noun: str) -> str:
    """`a cell`, `an object`, `a URL`, `an int`: the noun with its article."""
    word = noun.lstrip("`'\"").lower()
    is_vowel = word.startswith(SOUNDS_OPEN) or (
        word[:1] in ("a", "e", "i", "o", "u") and not word.startswith(SOUNDS_YOU)
    )
    return f"{'an' if is_vowel else 'a'} {noun}"


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name that is most like another one, if any is."""
    from difflib import get_close_matches

    folded = {each.lower(): each for each in names}
    near = get_close_matches(name.lower(), folded, n=1)
    return folded[near[0]] if near else None


def listed(names: Collection[str], most: int = NAMES_SHOWN) -> str:
    """`there is a, b, c ...`; empty without names. One that a terminal would obey is shown as Python writes it."""
    shown = ", ".join(name if name.isprintable() else repr(name) for name in [*names][:most])
    return f"there is {shown}{' ...' if len(names) > most else ''}" if names else ""
