"""For the tests of your own code: tasks that run at once, or when you say so, without a worker or a bucket.

from limpet import testing
from app import enrich, fleet              # in app.py: fleet = limpet.open()

def test_enrich():
    with testing.eager(fleet):             # a push runs its task before it returns
        pushed = enrich.push("a.com")
    assert enrich.queue.result(pushed.id).value == "A.COM"

def test_pipeline():
    with testing.isolated(fleet) as test:  # the same fleet, in memory, on a clock that stands still
        enrich.using(delay_s=3600).push("a.com")
        assert test.drain().done == 1      # runs everything, and moves the clock to whatever is due next

Limpet's pytest plugin has three fixtures: `limpet_isolated(fleet)` isolates a fleet until the test ends;
`limpet_fleet` is a new empty fleet in memory for each test, and `limpet_clock` its clock: `limpet_clock.advance(3600)`
makes what is due within the hour due now.
"""

from limpet.app import Fleet, open
from limpet.testing.at_once import drain, eager
from limpet.testing.clock import Clock, MovedRuntime
from limpet.testing.draining import DrainReport, FailedTask, OpenTask
from limpet.testing.isolation import IsolatedFleet, isolated

__all__ = ["Clock", "DrainReport", "FailedTask", "IsolatedFleet", "OpenTask", "drain", "eager", "fleet", "isolated"]


def fleet(clock: Clock | None = None) -> Fleet:
    """A new, empty fleet in this process's memory; with a `clock`, on that clock."""
    return open("memory://", runtime=MovedRuntime(clock) if clock is not None else None)
