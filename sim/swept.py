"""Scenario: a batch of durable tasks is cancelled while a worker has it, so that its steps stay for a sweep.

That sweep comes ten minutes later, and dies in the delete of the steps; the next one removes what is left.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from limpet.kernel.lease import State
from limpet.queue.entry import EntryLease
from sim.actors import RunPlan, Settings
from sim.durable import FLOWS, HEAL_S, QUIET_S, DurableActor, DurableActors, check_durable
from sim.world import SimProcess, World

DELETE = "steps.delete"
"""The step of the protocol in which the sweep dies."""


class SweptActors(DurableActors):
    """A worker, the user who cancels its batch, the sweep that dies, and a newcomer that finishes everything."""

    @staticmethod
    def tuning(world: World, plan: RunPlan) -> Settings:
        """None."""
        return {}

    def act(self) -> None:
        worker, user, sweeper, newcomer = (
            SweptActor(self, self.world.start(name)) for name in ("worker", "user", "sweeper", "newcomer")
        )
        self.world.spawn(worker.process, worker.work_for_ever)
        self.alone(user, user.cancel_what_is_held, within_s=HEAL_S)
        self.world.kill(worker.process)
        self.world.strike_during = (DELETE, self.die)
        self.world.spawn(sweeper.process, sweeper.sweep_for_ever)
        self.world.run(until_s=self.world.now_s + HEAL_S, done=lambda: not sweeper.process.alive)
        if self.bucket.below(FLOWS.steps):
            self.world.coverage["left", DELETE] += 1
        self.stop_faults()
        self.alone(newcomer, newcomer.finish_everything, within_s=HEAL_S)
        check_durable(self.bucket, self.plan, self.model)

    def die(self, victim: SimProcess) -> None:
        """Kill the process while its request is under way."""
        if self.world.strike("sweeper/crash", "crash"):
            self.world.cover("crash", victim)
        self.world.kill(victim)


class SweptActor(DurableActor):
    """A process of that story."""

    def work_for_ever(self) -> None:
        """Work on the durable tasks, but not on their children: no batch ends."""
        while True:
            with suppress(*self.expected):
                self.work(self.flows)

    def cancel_what_is_held(self) -> None:
        """Push batches, and cancel each while the worker has it, until one has left steps."""
        bucket, entry = self.actors.bucket, ""
        while not (FLOWS.failed_of(entry) in bucket.objects and bucket.below(FLOWS.steps_of(entry))):
            with suppress(*self.expected):
                lease = bucket.objects.get(FLOWS.lease(entry))
                state = lease and msgspec.json.decode(lease.data, type=EntryLease).state
                if state is State.FREE or FLOWS.tasks(entry, batch=True) not in bucket.objects:
                    calls = [{"what": "signal", "slow": 0.9, "by": self.new_value()} for _ in range(2)]
                    self.model.pushed += (ids := self.flows.push_many(calls))
                    entry = ids[0].rpartition(".")[0]
                elif state is State.HELD and bucket.below(FLOWS.steps_of(entry)):
                    self.flows.cancel(entry)
            self.runtime.sleep(0.2)

    def sweep_for_ever(self) -> None:
        """Each time when what was left is old enough to be removed."""
        while True:
            self.runtime.sleep(QUIET_S)
            with suppress(*self.expected):
                self.sweep()
