"""Bugs that others made before us (FAILURES.md rows, COUNTEREXAMPLES.md cell and lease), planted in our kernel."""

from __future__ import annotations

from planted.backup_bugs import BACKUP_BUGS
from planted.bug import Bug, Change
from planted.catalog_bugs import CATALOG_BUGS
from planted.durable_bugs import DURABLE_BUGS
from planted.index_bugs import INDEX_BUGS
from planted.queue_bugs import QUEUE_BUGS
from planted.sync_bugs import SYNC_BUGS

__all__ = ["BUGS", "Bug"]


def _bug(
    name: str, row: str, seed: int, *changes: tuple[str, str, str], scenario: str = "kernel", imports: str = ""
) -> Bug:
    return Bug(name, row, seed, tuple(Change(*change) for change in changes), scenario, imports)


_ALL = [
    _bug(
        "a 412 is taken at its word",
        "F1, counterexample 2",
        4,
        (
            "store.put_resolved",
            "verdict = classify(found)",
            "verdict = Verdict.LOST if found and isinstance(unclear, Conflict) else classify(found)",
        ),
    ),
    _bug(
        "a 412 on a resend is taken at its word",
        "counterexample 1",
        71,
        (
            "store.put_resolved",
            "verdict = classify(found)",
            "resent = sent > 1 and isinstance(unclear, Conflict)\n"
            "verdict = Verdict.LOST if found and resent else classify(found)",
        ),
    ),
    _bug(
        "a bucket's refusal is taken for final",
        "F1, counterexample 2",
        252,
        ("Store.conflict_is_final", "conflict_is_final = False", "conflict_is_final = True"),
        ("cell.classify", "return Verdict.REPLACED", "return Verdict.UNKNOWN"),
    ),
    _bug(
        "the next seq is taken for ours",
        "F2",
        1,
        (
            "cell.classify",
            "if found.write_id == write.write_id:",
            "if found.seq == (write.base.seq if write.base else 0) + 1:",
        ),
    ),
    _bug(
        "still the base is taken for not written",
        "F3",
        0,
        (
            "store.put_resolved",
            "if verdict is Verdict.BASE:",
            "if verdict is Verdict.BASE:\n    raise Conflict(f'{key} was not written')",
        ),
    ),
    _bug(
        "a retry after an unknown outcome mints a new id",
        "F5",
        145,
        (
            "cell._contend",
            "match self.attempt(seen, value, fence, lost=tries > 1):",
            "try:\n"
            "    outcome = self.attempt(seen, value, fence, lost=tries > 1)\n"
            "except OutcomeUnknown:\n"
            "    seen = self.read()\n"
            "    continue\n"
            "match outcome:",
        ),
    ),
    _bug(
        "a swap is a plain put",
        "F8",
        0,
        ("Cell._attempt", "Match(seen.version) if seen else Absent()", "Always() if seen else Absent()"),
        imports="from limpet.store import Always",
    ),
    _bug(
        "release deletes the lock",
        "F9",
        0,
        (
            "lease.free",
            "now = self._swap(change)\nfreed_before",
            "now = self._cell._store.delete(self._cell.key)\nfreed_before",
        ),
    ),
    _bug(
        "a freed lock starts its tokens again",
        "F10",
        0,
        ("lease.freed", "replace(record, state=State.FREE)", "replace(record, state=State.FREE, token=0)"),
    ),
    _bug(
        "a lower token is let in",
        "F12",
        30,
        ("cell.admit", "if offered.token < kept.token:", "if offered.token < 0:"),
    ),
    _bug(
        "the token is compared with an older look",
        "F12",
        30,
        (
            "cell._contend",
            "self.attempt(seen, value, fence",
            "self.attempt(self.read() if fence else seen, value, fence",
        ),
    ),
    _bug(
        "expiry is read from wall clocks",
        "F13",
        12,
        (
            "lease.next_step",
            "expired = until <= now or unchanged_s >= lasts_s",
            "expired = until <= now or unchanged_s >= lasts_s or wall > record.expires_at",
        ),
    ),
    _bug(
        "LastModified is taken for exact",
        "F14",
        390,
        ("lease.RESOLUTION_S", "RESOLUTION_S = 1.0", "RESOLUTION_S = 0.0"),
    ),
    _bug(
        "one look is enough for a takeover",
        "F13, DESIGN section 4",
        25,
        ("lease.next_step", "watched = unchanged_s >= look_interval_s(record.ttl_s)", "watched = True"),
    ),
    _bug(
        "two swaps within a tick have one version",
        "F15",
        1642,
        ("store._stamp", "max(mtime_ns, above_ns + step_ns)", "born_ns"),
        ("store._stamp", "if new.st_mtime_ns > above_ns:", "if True:"),
        ("store._replace", "if temp.stat.st_mtime_ns <= old.st_mtime_ns:", "if False:"),
        scenario="directory",
    ),
    _bug(
        "a lease that ran out passes check()",
        "F16",
        175,
        ("lease.check", "why = self._why_lost()\nif why is not None:", "why = self._ended\nif why is not None:"),
    ),
    _bug(
        "a lease lasts from the answer on, not from the question",
        "F16",
        4272,
        (
            "lease._rewrite",
            "self._valid_until_s = sent_at_s + self.ttl_s",
            "self._valid_until_s = self._runtime.elapsed_s() + self.ttl_s",
        ),
    ),
    _bug(
        "the heartbeat lives while the worker hangs",
        "F16",
        13,
        ("_KeptLease.renew", "if lease.stalled_for_s() >= self._stall_s:", "if False:"),
    ),
    _bug(
        "of several claims only the first is renewed",
        "planted from outside",
        0,
        ("lease.Renewer._renew_due", "for held in due:", "for held in due[:1]:"),
        (
            "lease.Renewer._renew_due",
            "self._due_s[held] = self._runtime.elapsed_s() + after_s",
            "self._due_s |= dict.fromkeys(due, self._runtime.elapsed_s() + after_s)",
        ),
        scenario="queue/test_renewer.py::test_every_claim_that_is_due_is_renewed_in_the_same_tick",
    ),
    _bug(
        "a lock with our owner id is ours",
        "F17",
        0,
        ("lease._try", "seen.header.write_id in self._unsure:", "seen.value.worker_id == self._runtime.owner:"),
    ),
    _bug(
        "a name that may be deleted is created again",
        "counterexample 3",
        2,
        ("cell.classify", "if write.base is None and not write.deletable else", "if write.base is None else"),
    ),
    _bug(
        "won by the ring only is still a lease",
        "counterexample 5",
        3593,
        ("lease.Lock._swap", "case Won(mine):", "case Won(mine) | Replaced(mine, _):"),
    ),
    _bug(
        "a write without a lease drops the fence",
        "counterexample 6",
        0,
        ("cell.admit", "return offered or kept", "return offered"),
        ("Cell._attempt", "fence or _kept(seen)", "fence"),
    ),
    _bug(
        "tokens of different locks are compared",
        "counterexample 7",
        0,
        ("cell.admit", "if kept.lock != offered.lock:", "if False:"),
    ),
    _bug(
        "a folder is not synced",
        "F25",
        5,
        ("store.sync", "self._files.fsync(folder.fd)\nif folder", "if folder"),
        scenario="directory",
    ),
    _bug(
        "a new folder's parent is not synced",
        "F25",
        5,
        ("store.sync", "if above is not None:\n    self.sync(above)", ""),
        scenario="directory",
    ),
    _bug(
        "a folder is known by its name alone",
        "D1",
        0,
        ("store.enter", "if met.st_ino == known.inode and met.st_dev == known.device:", "if True:"),
        scenario="store/test_directory_others.py::test_no_link_below_the_root_is_followed",
    ),
    _bug(
        "a file is not synced",
        "F25",
        5,
        ("store._fill", "if self._durable:\n    files.fsync(fd)", ""),
        scenario="directory",
    ),
    _bug(
        "a read-back confirms a write that was not synced",
        "F25, found by the simulation",
        100,
        ("store._settle", "self.doubtful.add(folder.path)\nraise not_durable(str(what)", "raise not_durable(str(what)"),
        scenario="directory",
    ),
    _bug(
        "an entry's lease is deleted before its task",
        "H5 on a directory",
        17,
        ("store.remove_in_order", "for path in paths:", "for path in reversed(paths):"),
        scenario="directory",
    ),
    _bug(
        "an entry's lease is deleted before its task is gone for good",
        "H5 on a directory",
        779,
        ("store.remove_in_order", "if self._durable:", "if self._durable and path == paths[-1]:"),
        scenario="directory",
    ),
    _bug(
        "a name that is used again is deleted without its lock",
        "docs/design/0011-latency.md",
        11,
        ("DirectoryStore.delete", "self._writer.remove(key, path)", "self._writer.remove_in_order([path])"),
        scenario="directory",
    ),
    _bug(
        "a claim that the ring cannot tell of is an unknown outcome",
        "found by the simulation",
        17,
        (
            "lease.Lock._swap",
            "case Replaced(_, now) | Lost(now) | Unclear(now):",
            "case Unclear():\n    raise OutcomeUnknown('the ring is too short')\ncase Replaced(_, now) | Lost(now):",
        ),
    ),
]

_TROUBLE = "store/test_directory_trouble.py::"
_WIRE = "store/test_cloud_wire.py::"
_NAMES = "store/test_refused_names.py::"

_STORES = [
    _bug(
        "a delete does not wait for the lock",
        "planted from outside",
        0,
        (
            "store.remove",
            "held = self._lock(key)\ntry:\n    with suppress(FileNotFoundError):",
            "held = -1\ntry:\n    with suppress(FileNotFoundError):",
        ),
        scenario=_TROUBLE + "test_a_delete_waits_for_the_lock_of_its_key",
    ),
    _bug(
        "a delete of what is gone is not synced",
        "planted from outside",
        0,
        (
            "store.remove",
            "with suppress(FileNotFoundError):\n    self._files.unlink(place.folder.fd, place.name)",
            "try:\n    self._files.unlink(place.folder.fd, place.name)\nexcept FileNotFoundError:\n    return",
        ),
        scenario=_TROUBLE + "test_a_delete_of_what_is_gone_is_synced_too",
    ),
    _bug(
        "a rename that failed did not land",
        "planted from outside",
        0,
        ("store._publish", "if self._landed(place, temp.stat):", "if False:"),
        scenario=_TROUBLE + "test_a_move_that_failed_and_was_made_is_unknown",
    ),
    _bug(
        "the age of temp files is in microseconds",
        "planted from outside",
        0,
        ("store.TEMP_AGE_NS_MAX", "24 * 60 * 60 * 1_000_000_000", "24 * 60 * 60 * 1_000_000"),
        scenario=_TROUBLE + "test_temps_live_for_a_day",
    ),
    _bug(
        "an mtime moves the clock, whatever it says",
        "D2",
        0,
        ("store.FileClock.modified", "mtime_ns = self._credible(mtime_ns, probe)", ""),
        scenario="store/test_directory_others.py::test_a_future_mtime_moves_no_clock",
    ),
    _bug(
        "the stamp of a write is taken for the time",
        "D2",
        0,
        (
            "store._fill",
            "new = self._stamp(fd, above_ns, born_ns)",
            "new = self._stamp(fd, above_ns, born_ns)\nself._clock.witness(new.st_mtime_ns)",
        ),
        scenario="store/test_directory_others.py::test_a_future_mtime_moves_no_clock",
    ),
    _bug(
        "a 404 to a swap is a missing bucket",
        "planted from outside",
        0,
        ("store._put_failed", "if (lost or gone) and not answer.no_bucket:", "if lost and answer.status != 404:"),
        scenario=_WIRE + "test_a_404_to_a_conditional_put_is_no_missing_bucket",
    ),
    _bug(
        "a time-out was not sent",
        "planted from outside",
        0,
        ("store.read_answer", 'unreachable = bool(kind and kind[1] == "Connect")', "unreachable = bool(kind)"),
        scenario=_WIRE + "test_only_a_connection_that_never_came_about_was_not_sent",
    ),
    _bug(
        "a short body is all that there is",
        "planted from outside",
        0,
        ("CloudStore._fetch", "if len(data) != stop - start:", "if len(data) > stop - start:"),
        scenario=_WIRE + "test_a_range_that_says_more_than_it_holds_is_never_accepted",
    ),
    _bug(
        "a put is sent again by the client",
        "F1",
        0,
        (
            "store.CloudStore.__init__",
            "_client(self._place, _SMALL_PUT, max_retries=0)",
            "_client(self._place, _SMALL_PUT, max_retries=3)",
        ),
        scenario=_WIRE + "test_a_put",
    ),
    _bug(
        "what a listing shows is not compared with what was asked for",
        "planted from outside",
        0,
        ("store._pages", '_check_below(meta["path"], folder)', "pass"),
        scenario=_WIRE + "test_foreign_keys_in_a_listing_are_not_taken_for_ours",
    ),
    _bug(
        "a page with the mark of its folder is the last one",
        "F23",
        0,
        ("store._pages", "more=len(page) == PAGE", "more=len(below) == PAGE"),
        scenario=_NAMES + "test_the_mark_of_a_folder_cuts_no_listing_short",
    ),
    _bug(
        "what was listed before a refused name is listed again",
        "F28",
        0,
        ("store._own_pages", "starts = [(folder, seen or after)]", "starts = [(folder, after)]"),
        scenario=_NAMES + "test_it_costs_one_request_more",
    ),
    _bug(
        "past a refused name what was not asked for is taken for ours",
        "F28",
        0,
        ("store._relative", "_check_below(key, self._place.prefix)", "pass"),
        ("store._listable", "_check_below(path, folder)", "pass"),
        scenario=_NAMES + "test_an_answer_that_is_wrong_is_an_error",
    ),
    _bug(
        "a sample stays in front of names that are refused",
        "F28",
        0,
        ("store.sample", "last = last if last.more else first", "last = first"),
        scenario=_NAMES + "test_thousands_of_refused_names",
    ),
    _bug(
        "a listing that is too long is read to its end",
        "F32",
        0,
        ("s3_list._body", "if len(data) > PAGE_BYTES_MAX:", "if len(data) < 0:"),
        scenario=_NAMES + "test_an_answer_that_is_wrong_is_an_error",
    ),
    _bug(
        "bytes of the same length are the same bytes",
        "planted from outside",
        0,
        (
            "store.put_bytes",
            "if found is not None and found.data == data:",
            "if found is not None and len(found.data) == len(data):",
        ),
        scenario="store/test_outcome.py::test_other_bytes_of_the_same_length_are_other_bytes",
    ),
]

BUGS = {
    bug.name: bug
    for bug in [
        *_ALL,
        *_STORES,
        *QUEUE_BUGS,
        *DURABLE_BUGS,
        *BACKUP_BUGS,
        *SYNC_BUGS,
        *INDEX_BUGS,
        *CATALOG_BUGS,
    ]
}
"""By name."""
