"""Nodes that work offline, each on its own directory, and a supervisor that brings them and the bucket together.

Read `records` for what they write for each other, `decide` for the rules, `journal` for what is noted before it takes
effect, `up` and `down` for the two cycles, `supervisor` for the loop.
"""

from limpet.queue.sync.journal import ClientLog, Outbox
from limpet.queue.sync.report import Collision, Cycle
from limpet.queue.sync.supervisor import Away, Back, Blocked, Event, Supervisor

__all__ = ["Away", "Back", "Blocked", "ClientLog", "Collision", "Cycle", "Event", "Outbox", "Supervisor"]
