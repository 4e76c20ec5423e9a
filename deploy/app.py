"""The tasks that the examples of this folder run. Replace them with yours."""

import limpet

fleet = limpet.open()  # LIMPET_URL


@fleet.task("shout")
def shout(word: str) -> str:
    """The word, louder."""
    return word.upper() + "!"
