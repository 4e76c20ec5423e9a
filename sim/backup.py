"""Scenario: a fleet of durable tasks is backed up by several machines while it works, and restored.

Backups meet every fault, also beside each other: a run is paused beyond its lease, dies, or begins while another one
works. Each backup that says that it is finished is whole. What is restored ends as the fleet had begun.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from limpet.app import backup_run as copying
from limpet.app.backup import backup, check_backup, restore
from limpet.app.backup_decide import BackupRecord
from limpet.app.record import FleetRecord, fresh, record_cell
from limpet.kernel import keys, records
from limpet.kernel.errors import Conflict
from limpet.kernel.keys import Key, batch_of, entry_of
from limpet.kernel.records import digest_of
from limpet.kernel.store.probe import Findings
from sim.actors import Actor, Nemesis, RunPlan, Settings, Turns, steps
from sim.bucket import Bucket, SimStore
from sim.durable import FLOWS, DurableActor, DurableActors, DurableModel, FlowRun
from sim.world import SimProcess, SimRuntime, Violation, World

RUN_S = 1_500.0
HEAL_S = 20_000.0
MACHINES = 2
"""Those that make backups."""
RUNS = 3
SOURCE, TARGET = "sim://fleet", "sim://backup"

STEPS = steps("backup: list put", "lock: renew take", "steps: list put read", "task: delete put")
"""The steps of the protocol at which a process may be struck."""


@dataclass(frozen=True, slots=True)
class BackupRun:
    """When a machine began to copy, and how many pushes had been acknowledged by then."""

    who: str
    at_s: float
    pushed: int


class TimedModel(DurableModel):
    """Also notes when the value of a step was seen first."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.seen_at_s: dict[tuple[str, int], float] = {}

    def saw(self, run: FlowRun, number: int, value: Any) -> None:
        """See `DurableModel.saw`."""
        super().saw(run, number, value)
        self.seen_at_s.setdefault(next(reversed(self.seen)), self.world.now_s)


class BackupActors(DurableActors):
    """The processes of a fleet, and machines that copy it to another bucket."""

    def __init__(self, world: World, plan: RunPlan) -> None:
        super().__init__(world, plan)
        self.model: TimedModel = TimedModel(world)
        self.kept = Bucket(world, plan)
        self.made = Bucket(world, plan)
        self.runs: list[BackupRun] = []
        self.turns_left |= {f"b{n}": RUNS for n in range(MACHINES)}
        self._playing += MACHINES

    @staticmethod
    def tuning(world: World, plan: RunPlan) -> Settings:
        """Groups and lists are small, so that runs are long and may be struck between any two."""
        return {(copying, "GROUP_OBJECTS"): 4, (copying, "LIST_LINES"): 10}

    def act(self) -> None:
        setter = BackupActor(self, self.world.start("setter"))
        self.alone(setter, setter.set_up, within_s=HEAL_S)
        self.play(Nemesis(self, STEPS).run, until_s=self.world.now_s + RUN_S)
        self.stop_faults()
        newcomer = BackupActor(self, self.world.start("newcomer"))
        self.alone(newcomer, newcomer.bring_back, within_s=HEAL_S)
        check_finished(self.kept)
        self.bucket = self.made
        worker = RestoredActor(self, self.world.start("restored"), self.last_run())
        copied = {*self.made.below(FLOWS.steps)}
        self.alone(worker, worker.finish_everything, within_s=HEAL_S)
        check_restored(self.made, worker.model, copied)

    def actor(self, process: SimProcess) -> Actor:
        if not process.name.startswith("b"):
            return super().actor(process)
        self.vary(process, newer=False)
        return BackupActor(self, process)

    def last_run(self) -> BackupRun:
        """The run whose copy is in the bucket of backups."""
        finished = [at for at, record in finishes(self.kept) if record.purpose == "backup"]
        change = self.kept.journal[finished[-1]]
        return max((run for run in self.runs if run.who == change.who and run.at_s <= change.at_s), key=_began)


def _began(run: BackupRun) -> float:
    return run.at_s


class BackupActor(Actor):
    """A machine that makes backups."""

    expected = (*Actor.expected, Conflict)

    def __init__(self, actors: BackupActors, process: SimProcess) -> None:
        runtime = SimRuntime(actors.world, process)
        super().__init__(runtime, SimStore(actors.bucket, runtime))
        self.actors = actors
        self.target = _beside(SimStore(actors.kept, runtime), 1)
        self.made = _beside(SimStore(actors.made, runtime), 2)

    def turns(self) -> Turns:
        return [(1.0, self.copy)]

    def rest(self) -> None:
        self.runtime.sleep(self.chance() * 60)

    def copy(self, wait_s: float = 0.0) -> None:
        """Make a backup. It begins when the lock is free, so it may have more than what is noted here."""
        self.actors.runs.append(BackupRun(self.process.name, self.world.now_s, len(self.actors.model.pushed)))
        backup(self.store, self.target, self.runtime, source_url=SOURCE, target_url=TARGET, wait_s=wait_s)

    def set_up(self) -> None:
        """An empty fleet, and its first backup, before the faults."""
        found = Findings(conditional=True, etag_style="quoted", at="", by="")
        self.world.healed = True
        record_cell(self.store, self.runtime).create(fresh(found, "fleet"))
        self.copy()
        self.world.healed = False

    def bring_back(self) -> None:
        """Finish a backup that no machine has finished, and restore it."""
        self.runtime.sleep(200.0)
        last = record_of(self.actors.kept)
        if last.state != "finished":
            # If the clock of the store was set back, a dead run holds the lock for longer.
            self.copy(wait_s=HEAL_S)
        found = check_backup(self.target, self.runtime, url=TARGET)
        if not found.ok:
            raise Violation(f"the backup is finished, and not whole: {found}")
        restore(self.target, self.made, self.runtime, source_url=TARGET, target_url=SOURCE)
        before, after = (self._fleet(bucket) for bucket in (self.actors.bucket, self.actors.made))
        if after.id != before.id or (after.epoch or 0) <= (before.epoch or 0):
            raise Violation(f"the fleet {before.id} was restored as {after.id}, with epoch {after.epoch}")

    @staticmethod
    def _fleet(bucket: Bucket) -> FleetRecord:
        return msgspec.json.decode(bucket.objects[keys.FLEET].data, type=FleetRecord)


def _beside(store: SimStore, number: int) -> SimStore:
    """Another store of a process: its requests have other numbers."""
    store._sent = number << 32
    return store


class RestoredActor(DurableActor):
    """A worker of the restored fleet, which knows what had been acknowledged when the backup began."""

    def __init__(self, actors: BackupActors, process: SimProcess, run: BackupRun) -> None:
        super().__init__(actors, process)
        model = actors.model
        self.model = DurableModel(actors.world, pushed=model.pushed[: run.pushed])
        self.model.seen = {at: value for at, value in model.seen.items() if model.seen_at_s[at] < run.at_s}
        epoch = msgspec.json.decode(actors.made.objects[keys.FLEET].data, type=FleetRecord).epoch or 0
        for queue in (self.flows, self.parts):
            queue.storage.epoch = epoch


# ---- what must hold ----


def record_of(bucket: Bucket) -> BackupRecord:
    """The record of the last run."""
    return msgspec.json.decode(bucket.objects[keys.BACKUP].data, type=BackupRecord)


def finishes(bucket: Bucket) -> list[tuple[int, BackupRecord]]:
    """The mutations that said that a backup is finished, by their number."""
    said = []
    for at, change in enumerate(bucket.journal):
        if change.key == keys.BACKUP and change.data is not None:
            record = msgspec.json.decode(change.data, type=BackupRecord)
            said += [(at, record)] if record.state == "finished" else []
    return said


def check_finished(bucket: Bucket) -> None:
    """Whenever a run says that it is finished, all that its lists name is there, byte for byte.   Raises: Violation."""
    finished = dict(finishes(bucket))
    objects: dict[Key, bytes] = {}
    for at, change in enumerate(bucket.journal):
        if change.data is None:
            objects.pop(change.key, None)
        else:
            objects[change.key] = change.data
        if at in finished:
            _check_whole(objects, finished[at], f"{change.who} at {change.at_s:.0f} s")


def _check_whole(objects: dict[Key, bytes], record: BackupRecord, who: str) -> None:
    for number, ref in enumerate(record.lists):
        data = objects.get(keys.backup_list_key(record.run, number))
        if data is None or digest_of(data) != ref.sha256:
            raise Violation(
                f"{who} finished {record.run}, whose list {number} is {'gone' if data is None else 'other'}"
            )
        for line in data.splitlines():
            key, _, _, digest = records.decode(line, tuple[str, int, str, str], what="a line")
            found = objects.get(Key(key))
            if found is None or digest_of(found) != digest:
                raise Violation(f"{who} finished {record.run}: {key} is {'gone' if found is None else 'other bytes'}")


def check_restored(bucket: Bucket, model: DurableModel, copied: set[Key]) -> None:
    """Every task of the fleet has ended in the restored one, none that was waited for was lost, and no step that the
    copy had was called: not by a first claim either, of a task that was copied between its claim and its step."""
    for call in model.calls:
        if call.number == 0 and FLOWS.step(call.run.entry, call.run.n, 0) in copied:
            raise Violation(f"{call.run.who} called a step of {call.run.id} that the backup has")
    for id_ in model.pushed:
        part = batch_of(id_)
        names = [entry_of(id_), *([part[0]] if part else [])]
        receipts = [key for name in names for key in (FLOWS.completed_of(name), FLOWS.failed_of(name))]
        if not any(key in bucket.objects for key in receipts):
            raise Violation(f"{id_} was acknowledged before the backup began, and is not in the restored fleet")
    for end in model.gathered:
        if not end.ready:
            raise Violation(f"a gather of the restored fleet returned {end.id} as {end.state}")
