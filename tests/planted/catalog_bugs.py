"""Bugs planted in the catalog's kernel: COUNTEREXAMPLES.md (Catalog) 1 to 12, and what the simulation itself found."""

from __future__ import annotations

from planted.bug import Bug, Change

__all__ = ["CATALOG_BUGS"]


def _bug(name: str, row: str, seed: int, *changes: tuple[str, str, str], imports: str = "") -> Bug:
    planted = tuple(
        Change(where if where.startswith("runtime.") else f"catalog.{where}", old, new) for where, old, new in changes
    )
    return Bug(name, row, seed, planted, "catalog", imports)


CATALOG_BUGS = [
    _bug(
        "an epoch needs the token that leads",
        "catalog 1",
        0,
        ("classify", "if token <= head.token:", "if token != head.token:"),
    ),
    _bug(
        "a compactor does not look whether it has published a batch before",
        "catalog 2",
        2,
        ("applied_in", "if not found:\n    return None", "if found is not None:\n    return None"),
    ),
    _bug(
        "a swap that is lost refuses the batch",
        "catalog 3",
        6,
        (
            "Compactor._attempt",
            "case _:\n    return None",
            "case _:\n    raise PublicationRefused(RefusedBatch(False, 'the head has moved'))",
        ),
    ),
    _bug(
        "the token is checked before what was published",
        "catalog 4",
        5,
        (
            "Compactor._attempt",
            "done = applied_in(head, paths)",
            "if head is not None and token < head.token:\n"
            "    raise PublicationRefused(RefusedBatch(True, 'another token leads'))\n"
            "done = applied_in(head, paths)",
        ),
    ),
    _bug(
        "a lock of another process refuses the batch",
        "catalog 5",
        6,
        ("Compactor._attempt", "if head is None or head.token < token:", "if paths:"),
        (
            "_check_lock",
            "if holder is None or holder.value.token != token:",
            "if holder is None or holder.value.token != token:\n"
            "    raise PublicationRefused(RefusedBatch(True, 'another process holds the lock'))\n"
            "if holder is None:",
        ),
    ),
    _bug(
        "after a refused batch no process looks for the ids",
        "catalog 6",
        2,
        ("_validate", "answered = state.answered(pending.id)", "answered = None"),
    ),
    _bug(
        "a refusal is sent before what it rests on is published",
        "catalog 7, dirty",
        0,
        (
            "_serve",
            "path = self._add(term.lease, term.version, group, term.last_id)",
            "for pending, _, error in group.answers:\n"
            "    if error is not None:\n"
            "        pending.fail(error)\n"
            "path = self._add(term.lease, term.version, group, term.last_id)",
        ),
    ),
    _bug(
        "a leader refuses from memory",
        "catalog 7, stale",
        761,
        ("_serve", "if self._is_current(term):", "if term is not None:"),
    ),
    _bug(
        "a snapshot holds no answers",
        "catalog 8",
        0,
        ("_forgetful", "state.forgetting(seen.value.at))", "state.forgetting('2499-01-01T00:00:00.000000+00:00'))"),
    ),
    _bug(
        "names follow from the head alone",
        "catalog 9",
        34,
        (
            "Compactor._build",
            'id_ = ulid_above(storage.runtime.new_id(), max(head.last_id, head.gc_floor) if head else "")',
            'id_ = ulid_above("0" * 26, max(head.last_id, head.gc_floor) if head else "")',
        ),
        (
            "Compactor._build",
            "snapshot_id = ulid_above(storage.runtime.new_id(), id_)",
            'snapshot_id = ulid_above("0" * 26, id_)',
        ),
    ),
    _bug(
        "a slow clock makes the name right above the last one",
        "catalog 9, catalog 12c, found by the simulation",
        9,
        (
            "runtime.ulid_above",
            "return ulid(floor_ms + 1, 0)[:10] + id_[10:]",
            "number = 1 + sum(_ALPHABET.index(each) << 5 * n for n, each in enumerate(reversed(floor)))\n"
            "return ulid(number >> 80, number & ((1 << 80) - 1))",
        ),
    ),
    _bug(
        "GC deletes without a floor in the head",
        "catalog 10",
        1,
        (
            "_with_floor",
            "if head is None or floor <= head.gc_floor:\n    return None",
            "if head is None or floor:\n    return None",
        ),
        ("delete_below", "floor = seen.value, seen.value.gc_floor", "floor = seen.value, seen.value.links[0].id"),
    ),
    _bug(
        "the floor goes by the snapshot's name alone",
        "catalog 10, found by the simulation",
        7,
        ("floor_at", "return min(snapshot.id, first.id) if snapshot else", "return snapshot.id if snapshot else"),
    ),
    _bug(
        "a reader takes a snapshot that is gone for lost",
        "catalog 11",
        94,
        ("now", "if seen.version == incomplete:", "if seen.version != incomplete:"),
    ),
    _bug(
        "a walker takes a commit below the newest floor for lost",
        "catalog 11, found by the simulation",
        9,
        ("history._read", "if link.id < _floor(storage, head, link):", "if link.id < head.gc_floor:"),
    ),
    _bug(
        "nobody may make the first head",
        "catalog 12a",
        0,
        ("classify", "return Go(_rows(batches)) if epoch else NoHead()", "return NoHead()"),
    ),
    _bug(
        "a race for the first head is taken for a lost one",
        "catalog 12a, found by the simulation",
        7,
        (
            "Compactor._attempt",
            'self._check_moved(seen, "the head is missing, and there are commits")',
            'raise Corrupt("the head is missing, and there are commits")',
        ),
    ),
    _bug(
        "a lost lock begins again below the token that leads",
        "catalog 12b",
        0,
        (
            "Leader._begin",
            "if before is not None and before.head.token >= lease.token:",
            "if before is not None and before.head.token < 0:",
        ),
    ),
    _bug(
        "a slow clock makes names below those that are there",
        "catalog 12c",
        0,
        ("runtime.ulid_above", "if id_ > floor:", "if id_:"),
    ),
    _bug(
        "the ledger is read before what was published is looked for",
        "catalog 12d",
        281,
        (
            "Compactor._attempt",
            "done = applied_in(head, paths)",
            "self._batches(paths)\ndone = applied_in(head, paths)",
        ),
    ),
    _bug(
        "what was published long ago is not looked for in the chain",
        "catalog 2",
        2,
        (
            "Compactor._attempt",
            "published = self._published_long_ago(head, batches, paths)",
            "published = None",
        ),
    ),
    _bug(
        "an unclear swap is taken for lost",
        "F3",
        39,
        (
            "Compactor._attempt",
            "case _:\n    return None",
            "case Lost():\n    return None\n"
            "case _:\n    raise PublicationRefused(RefusedBatch(False, 'the swap was lost'))",
        ),
        imports="from limpet.cell import Lost",
    ),
    _bug(
        "a compactor refuses by the head that it remembers",
        "catalog 7, stale",
        2,
        (
            "Compactor.publish",
            "except (PublicationRefused, Invalid, Unavailable, Corrupt):",
            "except (Invalid, Unavailable, Corrupt):",
        ),
    ),
    _bug(
        "no epoch: a higher token may publish at once",
        "F12",
        0,
        ("classify", "elif token != head.token:", "elif token < head.token:"),
        (
            "Leader._begin",
            "self._send(lease, self._add(lease, None, _Group(), last_id), EPOCH_PATIENCE_S)",
            "if before is None:\n    self._send(lease, self._add(lease, None, _Group(), last_id), EPOCH_PATIENCE_S)",
        ),
        (
            "Leader._begin",
            "if loaded is None or loaded.head.token != lease.token:",
            "if loaded is None or loaded.head.token > lease.token:",
        ),
        (
            "_is_current",
            "if loaded is None or loaded.head.token != term.lease.token:",
            "if loaded is None or loaded.head.token > term.lease.token:",
        ),
    ),
    _bug(
        "a leader leads on after an unknown outcome",
        "catalog 6, by giving up",
        9,
        ("_serve", "self._resign()  # the next term begins with what was really published", ""),
    ),
    _bug(
        "a batch counts as dead if the last attempt met nobody",
        "F3",
        3349,
        ("_send", "reached |= not isinstance(", "reached = not isinstance("),
    ),
    _bug(
        "a batch may be published on any version",
        "F15",
        26,
        (
            "classify",
            "elif any(batch.base_version != head.version for batch in batches):",
            "elif any(batch.base_version is None for batch in batches):",
        ),
    ),
    _bug(
        "clients are answered before the head is swapped",
        "F25",
        0,
        (
            "_serve",
            "try:\n    published = self._send(term.lease, path, PATIENCE_S)",
            "for pending, result, error in group.answers:\n"
            "    if error is None:\n"
            "        pending.answer(result)\n"
            "try:\n"
            "    published = self._send(term.lease, path, PATIENCE_S)",
        ),
    ),
    _bug(
        "objects that a batch names are not waited for",
        "F25",
        12,
        ("add_batch", "at_once=WRITES_WIDER * store.at_once):", "at_once=WRITES_WIDER * store.at_once)[:1]:"),
    ),
    _bug(
        "an id lives no longer than its commit",
        "catalog 8",
        0,
        ("CatalogState.forgetting", "_oldest(at, ID_LIFETIME)", "_oldest(at, timedelta(0))"),
    ),
    _bug(
        "the record of a commit is never written",
        "found while designing",
        0,
        ("Compactor._attempt", "if head is not None:\n    self._record(head)", "if head is not None:\n    pass"),
    ),
    _bug(
        "the record of a commit is not the one that the head names",
        "F23",
        0,
        ("state.commit_of", "links=head.links[1:]", "links=head.links"),
        ("_add_commit", "if link_to(commit) != link:", "if link_to(commit) is None:"),
    ),
    _bug(
        "a commit points back to an older one than the last",
        "found while designing",
        0,
        ("links_after", "kept: list[Link] = [head.links[0]]", "kept: list[Link] = [head.links[-1]]"),
    ),
    _bug(
        "a prepared snapshot replaces a newer one",
        "found while designing",
        2,
        ("_ready_for", "not known < ready.ref.version <= head.version", "not ready.ref.version <= head.version"),
    ),
    _bug(
        "the tail loses a version that the snapshot does not hold",
        "found while designing",
        0,
        (
            "next_head",
            "if snapshot is None or each.version > snapshot.version)",
            "if snapshot is None or each.version > max(snapshot.version, version - 3))",
        ),
    ),
    _bug(
        "the time of a commit is whatever the clock says",
        "F13",
        5,
        (
            "Compactor._build",
            'at = max(time_text(storage.store.now()), head.at if head else "")',
            "at = time_text(storage.store.now())",
        ),
    ),
    _bug(
        "what was worked out on older metadata is published",
        "C4, apply before the leader is asked",
        0,
        ("WorkedMetadata.has", "return path in self._results", "return bool(self._results)"),
        ("WorkedMetadata.result", "result = self._results[path]", "result = next(iter(self._results.values()))"),
    ),
    _bug(
        "a group is signed by the first who sent a request",
        "C5, actors",
        0,
        (
            "Leader._validate",
            "signed = (Change(ACTOR, pending.actor),) if pending.actor else ()",
            "signed = (Change(ACTOR, waiting[0].actor),) if waiting[0].actor else ()",
        ),
    ),
    _bug(
        "who sent a request becomes an entry",
        "C5, actors",
        0,
        ("CatalogState.after", "if change.key != ACTOR:", "if change.key:"),
    ),
    Bug(
        "a commit goes by what was worked out first",
        "C4, apply before the leader is asked",
        0,
        (
            Change(
                "catalog._after",
                "if worked.has(path):\n    return worked.result(path)",
                "if worked._results:\n    return worked.result(next(iter(worked._results)))",
            ),
        ),
        "catalog/test_catalog_hardening.py::"
        "test_what_a_commit_requires_is_checked_on_the_table_as_it_is_when_it_is_published",
    ),
    Bug(
        "expiry ignores branches other than main",
        "issue 17, maintenance",
        0,
        (
            Change(
                "maintain.decide.expired",
                "for ref in kept_refs.values():",
                "for ref in [ref for name, ref in kept_refs.items() if name == MAIN]:",
            ),
        ),
        "catalog/test_catalog_maintain.py::test_what_a_branch_or_tag_needs_stays",
    ),
    Bug(
        "orphans are removed without a grace time",
        "issue 17, maintenance",
        268,
        (Change("maintain.decide.orphans", "file.modified < before and ", ""),),
        "maintain",
    ),
    Bug(
        "the metadata is read before the files are listed, and no grace time",
        "issue 17, maintenance",
        149,
        (
            Change(
                "TableMaintenance.remove_orphans",
                "listed = self._listed(roots)\nloaded = self._load()",
                "loaded = self._load()\nlisted = self._listed(roots)",
            ),
            Change("maintain.decide.orphans", "file.modified < before and ", ""),
        ),
        "maintain",
    ),
    Bug(
        "only the current snapshot's files are needed",
        "issue 17, maintenance",
        0,
        (
            Change(
                "TableMaintenance._needed",
                "for snapshot in each.snapshots or ():",
                "for snapshot in (each.snapshots or ())[-1:]:",
            ),
        ),
        "maintain",
    ),
    Bug(
        "a removal of snapshots takes a new branch with it",
        "issue 17, maintenance",
        0,
        (Change("catalog.commit.apply", "_check_removal(document, new, commit)", "pass"),),
        "catalog/test_catalog_maintain.py::test_a_snapshot_is_not_removed_from_under_a_new_branch",
    ),
    Bug(
        "a purge goes by what was looked at before the decision",
        "issue 25, a check is part of its decision",
        8,
        (
            Change(
                "entries.drop",
                "if purge.has(old.path):\n    purge.result(old.path)",
                "if purge._results:\n    purge.result(next(iter(purge._results)))",
            ),
        ),
        "maintain",
    ),
    Bug(
        "a compaction keeps its file although rows were deleted meanwhile",
        "issue 25, deletes beside a compaction",
        0,
        (Change("RewrittenGroup.still_holds", "return live == self.old", "return live.keys() == self.old.keys()"),),
        "catalog/test_catalog_deletes.py::test_rows_that_are_deleted_beside_a_compaction_stay_deleted[2]",
    ),
    Bug(
        "deletes that come beside a compaction are lost with its old files",
        "issue 25, deletes beside a compaction",
        0,
        (Change("RewrittenGroup.still_holds", "return live == self.old", "return live.keys() == self.old.keys()"),),
        "maintain",
    ),
    Bug(
        "a deletion vector of the same commit does not apply",
        "issue 25, deletes beside a compaction",
        0,
        (
            Change(
                "DeleteIndex.of",
                "if vector is not None and added >= number:",
                "if vector is not None and added > number:",
            ),
        ),
        "catalog/test_catalog_deletes.py::test_deletes_apply_to_files_of_their_own_commit[3]",
    ),
    Bug(
        "deletion vectors apply to older files only",
        "issue 25, deletes beside a compaction",
        6,
        (
            Change(
                "DeleteIndex.of",
                "if vector is not None and added >= number:",
                "if vector is not None and added > number:",
            ),
        ),
        "maintain",
    ),
    Bug(
        "orphans are listed after the metadata was read",
        "issue 25, maintenance",
        0,
        (
            Change(
                "TableMaintenance.remove_orphans",
                "listed = self._listed(roots)\nloaded = self._load()",
                "loaded = self._load()\nlisted = self._listed(roots)",
            ),
        ),
        "catalog/test_catalog_maintain.py::test_an_old_file_that_a_commit_names_meanwhile_is_no_orphan",
    ),
    Bug(
        "older metadata is not kept for readers",
        "issue 25, maintenance",
        0,
        (
            Change(
                "TableMaintenance.remove_orphans",
                "recent = [] if quiesced else recent_metadata(",
                "recent = [] if history else recent_metadata(",
            ),
        ),
        "catalog/test_catalog_maintain.py::test_files_of_snapshots_that_expired_lately_stay_for_their_readers",
    ),
    Bug(
        "metadata that was purged meanwhile counts as damaged",
        "issue 25, found by the simulation",
        0,
        (Change("WorkedMetadata.work_out", "except Unavailable:", "except (Unavailable, Corrupt):"),),
        "catalog/test_catalog_tables.py::test_metadata_that_was_purged_meanwhile_is_not_damaged[directory]",
    ),
    Bug(
        "a query calls functions with side effects that are new in DuckDB",
        "issue 25, sandbox",
        0,
        (Change("sql.refused_functions", "if has_effects} - _VOLATILE", "if not name} - _VOLATILE"),),
        "index/test_index_sql.py::test_an_unknown_function_with_side_effects_is_refused",
    ),
    Bug(
        "snapshots of a table whose files others need are removed",
        "issue 25, a check is part of its decision",
        0,
        (Change("commit._check_removal", 'if not owns_files(whole(old)["properties"]):', "if False:"),),
        "catalog/test_catalog_maintain.py::test_snapshots_of_a_table_whose_files_others_need_are_not_removed",
    ),
    Bug(
        "a query reads files of another table",
        "F29",
        0,
        (Change("Catalog.open_table", "check_not_of_others(state, path, own)", "pass"),),
        "app/test_query.py::test_a_table_that_names_a_file_elsewhere_is_refused",
    ),
    Bug(
        "a snapshot takes row ids that another one has",
        "issue 17, row lineage",
        0,
        (Change("metadata._after_rows", "if first < next_row_id:", "if first < 0:"),),
        "catalog/test_catalog_v3.py::test_writers_at_once_never_share_row_ids",
    ),
    Bug(
        "row ids above a gap are assigned again",
        "issue 17, row lineage",
        0,
        (Change("metadata._after_rows", "return int(first + added)", "return next_row_id + int(added)"),),
        "catalog/test_catalog_v3.py::test_row_ids_are_assigned_once",
    ),
    Bug(
        "rights are checked after the signature",
        "F31",
        0,
        (
            Change(
                "service.RequestSigner.sign",
                "wanted = decide(asked, may_write=may_write, bucket=self._bucket, folders=inside)",
                "wanted = decide(asked, may_write=True, bucket=self._bucket, folders=inside)",
            ),
            Change(
                "service.RequestSigner.sign",
                "return {",
                "decide(asked, may_write=may_write, bucket=self._bucket, folders=inside)\nreturn {",
            ),
        ),
        "service/test_service_signing.py::test_rights_are_checked_before_the_signature",
    ),
    Bug(
        "a prefix matches a sibling table",
        "F29",
        0,
        (Change("service._is_inside", 'f"{folder}/"', "folder"),),
        "service/test_service_signing.py::test_a_sibling_whose_name_begins_alike_is_another_table",
    ),
    Bug(
        "a host that names the bucket is signed for every server",
        "F29",
        0,
        (Change("service._raw_key", "named = []", 'named = [f"{bucket.name}.{own_host}"]'),),
        "service/test_service_signing.py::test_only_on_aws_may_the_host_name_the_bucket",
    ),
    _bug(
        "a leader whose lease has ended checks rights by what it knew",
        "issue 17, signing",
        94,
        ("Leader.known", "if term is not None and not term.lease.lost else None", "if term is not None else None"),
    ),
    Bug(
        "the policy of a credential matches a sibling table",
        "F29",
        0,
        (
            Change(
                "session_policy",
                'f"arn:{partition}:s3:::{bucket}/{folder}/*"',
                'f"arn:{partition}:s3:::{bucket}/{folder}*"',
            ),
        ),
        "service/test_service_signing.py::test_the_policy_of_a_table_does_not_match_its_sibling",
    ),
    Bug(
        "folders that differ in upper and lower case are those of two tables",
        "F31",
        0,
        (
            Change(
                "catalog.state._taken",
                "return found if found is not None else _taken_in_other_case(state, root, own)",
                "return found",
            ),
        ),
        "catalog/test_catalog_entries.py::test_a_folder_belongs_to_one_table",
    ),
    Bug(
        "one credential for all rights",
        "F31",
        0,
        (Change("CredentialSource.issue", "may_write=may_write", "may_write=True"),),
        "service/test_service_signing.py::test_a_credential_for_a_token_that_may_only_read_is_another_one",
    ),
    Bug(
        "a compaction copies a file of another table",
        "F29",
        0,
        (Change("_fetch_own", "if self._is_readable(url) and not", "if False and not"),),
        "catalog/test_catalog_maintain.py::test_a_compaction_copies_no_file_of_another_table",
    ),
    Bug(
        "a catalog that is imported chooses what its client runs",
        "issue 17, import",
        0,
        (Change("BoundedRestCatalog._fetch_config", "self.properties = {**own, **theirs}", "del own, theirs"),),
        "clients/test_clients_import.py::test_a_source_chooses_neither_code_nor_the_receiver_of_a_secret",
    ),
    Bug(
        "a commit whose snapshot has expired counts as refused",
        "F1",
        0,
        (
            Change(
                "decide.was_added",
                "return False if is_of_other or table.last_sequence_number < number else None",
                "return False",
            ),
        ),
        "catalog/test_catalog_maintain.py::test_a_commit_that_was_sent_twice_and_has_expired_keeps_its_files",
    ),
    Bug(
        "a publication expires by the branches and tags that it saw before",
        "issue 17, maintenance",
        0,
        (
            Change(
                "IndexPublisher._expiring",
                "expiry_request(history, plan)",
                '{"updates": expiry_request(history, plan)["updates"]}',
            ),
        ),
        "catalog/test_catalog_maintain.py::test_a_publication_does_not_expire_a_tag_that_was_moved_meanwhile",
    ),
    Bug(
        "the files of another catalog are deleted",
        "issue 17, maintenance",
        0,
        (Change("decide.owns_files", 'properties.get(GC_PROPERTY, "true").lower() == "true"', "True"),),
        "catalog/test_catalog_maintain.py::test_files_that_others_own_stay",
    ),
    Bug(
        "queries under way do not keep their files",
        "issue 17, maintenance",
        17,
        (
            Change(
                "TableMaintenance.remove_orphans",
                "recent = [] if quiesced else recent_metadata(",
                "recent = [] if history else recent_metadata(",
            ),
        ),
        "maintain",
    ),
    Bug(
        "recent metadata goes by the clocks of its writers",
        "issue 17, maintenance",
        101,
        (
            Change(
                "maintain.decide.recent_metadata",
                "known = [written[name] for name in names_of(following) if name in written]\n"
                "if known and max(known) < since:",
                "at_ms = table.last_updated_ms if following == location else later_ms\n"
                "later_ms = entry.timestamp_ms\n"
                "if at_ms < since.timestamp() * 1000:",
            ),
        ),
        "maintain",
    ),
    Bug(
        "the grace time goes by the clock of this machine",
        "issue 17, maintenance",
        17,
        (
            Change(
                "TableMaintenance._now",
                "return self._store.now(max_age_s=0.0)",
                "return self._runtime.wall()",
            ),
        ),
        "maintain",
    ),
    Bug(
        "a tag does not keep its snapshot, and a commit may lose it",
        "issue 17, maintenance",
        6,
        (
            Change(
                "maintain.decide.expired",
                'kept.add(ref.snapshot_id)\nif ref.type == "tag":\n    continue',
                'if ref.type == "tag":\n    continue',
            ),
            Change(
                "catalog.commit.apply",
                "_check_removal(document, new, commit)",
                "pass",
            ),
        ),
        "maintain",
    ),
    Bug(
        "a file counts only for the snapshot that added it",
        "issue 17, maintenance",
        6,
        (
            Change(
                "NeededFiles.add_snapshot",
                "self._keep(entry.data_file.file_path)",
                "if str(entry.snapshot_id) in manifest_list:\n    self._keep(entry.data_file.file_path)",
            ),
        ),
        "maintain",
    ),
    Bug(
        "a commit that was sent twice loses its files",
        "issue 17, maintenance",
        0,
        (
            Change(
                "TableChange._landed",
                "was = next((was_added(self._history(loaded), each) for each in added), False)",
                "was = False",
            ),
        ),
        "maintain",
    ),
    Bug(
        "a compaction that is tried again has deleted its files",
        "issue 17, maintenance",
        136,
        (
            Change(
                "TableMaintenance._commit",
                "landed = self._landed(request, written)",
                "landed = self._landed(request, written)\n"
                "self._remove([self._key(one.new.file_path) for one in done if one.new and not landed])",
            ),
        ),
        "maintain",
    ),
    Bug(
        "a compaction that is tried again does not look at what was changed",
        "issue 17, maintenance",
        0,
        (
            Change(
                "TableMaintenance._replace",
                "if not one.still_holds(current)",
                "if one is None",
            ),
        ),
        "maintain",
    ),
    Bug(
        "a compaction whose outcome is not known deletes its files",
        "issue 25, cleanup after an error",
        128,
        (Change("TableMaintenance._replace", "if not may_be_published:", "if done:"),),
        "maintain",
    ),
    Bug(
        "expiry deletes the files of a snapshot at once",
        "issue 17, maintenance",
        6,
        (
            Change(
                "TableMaintenance.expire",
                "writer.commit_table(self._namespace, self._name, expiry_request(history, plan))",
                "writer.commit_table(self._namespace, self._name, expiry_request(history, plan))\n"
                "self._remove([self._key(history.by_id()[id_].manifest_list) for id_ in plan.snapshots])",
            ),
        ),
        "maintain",
    ),
    Bug(
        "a signature goes by the folders that the name had before",
        "issue 17, signing",
        0,
        (
            Change(
                "Catalog.table_folders",
                "return roots",
                'known = self.__dict__.setdefault("_folders_known", {})\n'
                "return known.setdefault((*namespace, name), roots)",
            ),
        ),
        "service/test_service_signing.py::test_what_is_signed_and_issued_follows_the_catalog",
    ),
    Bug(
        "a process that does not lead signs by the state that it has read",
        "issue 17, signing",
        0,
        (
            Change(
                "Catalog._known_or_read",
                "state = self._known()",
                "state = self._known() or (self.view._loaded.state if self.view._loaded else None)",
            ),
        ),
        "catalog/test_catalog_maintain.py::test_a_process_that_does_not_lead_signs_by_the_published_state",
    ),
    Bug(
        "the task of a plan reads whatever table has the name",
        "issue 17, planning",
        0,
        (
            Change(
                "_PlanReader.__init__",
                "if snapshot is None and asked.snapshot_id is not None:\n"
                '    raise Missing(f"the table has no snapshot {asked.snapshot_id}")',
                "if snapshot is None:\n    snapshot = table.current_snapshot()",
            ),
        ),
        "catalog/test_catalog_maintain.py::test_a_plan_is_of_the_table_and_not_of_its_name",
    ),
    Bug(
        "the tasks of a plan read the newest snapshot",
        "issue 17, planning",
        0,
        (
            Change(
                "plan_scan",
                'fields |= {} if planner.is_incremental else {"snapshot-id": planner.snapshot_id}',
                "pass",
            ),
        ),
        "catalog/test_catalog_maintain.py::test_a_plan_is_of_the_table_and_not_of_its_name",
    ),
    Bug(
        "a plan reads manifests of a sibling table",
        "F29",
        0,
        (
            Change(
                "Catalog._planned",
                'path.startswith(f"{folder}/")',
                "path.startswith(folder)",
            ),
        ),
        "catalog/test_catalog_maintain.py::test_a_plan_reads_no_manifest_of_a_sibling_folder",
    ),
    Bug(
        "metadata that was replaced within the grace time does not count",
        "issue 17, maintenance",
        0,
        (
            Change(
                "maintain.decide.recent_metadata",
                "following = entry.metadata_file\nfound.append(following)",
                "following = entry.metadata_file\n"
                "if any(written.get(name, since) >= since for name in names_of(following)):\n"
                "    found.append(following)",
            ),
        ),
        "catalog/test_catalog_retention.py::test_metadata_that_was_current_lately",
    ),
    Bug(
        "a manifest counts only for the snapshot that added it",
        "issue 17, maintenance",
        0,
        (
            Change(
                "NeededFiles.add_snapshot",
                "if self._add(manifest.manifest_path):",
                "if str(manifest.added_snapshot_id) in manifest_list and self._add(manifest.manifest_path):",
            ),
        ),
        "catalog/test_catalog_maintain.py::test_manifests_of_expired_snapshots_stay_while_a_retained_one_names_them",
    ),
    Bug(
        "a compaction gives rows new ids",
        "issue 17, row lineage",
        0,
        (Change("rewrite._traced", "if first is not None:", "if False:"),),
        "clients/test_clients_v3.py::test_a_compaction_keeps_row_ids_and_applies_deletion_vectors[directory]",
    ),
    Bug(
        "a compaction counts the rows after the deleted ones are gone",
        "issue 17, row lineage",
        0,
        (Change("rewrite._traced", "at += batch.num_rows", "at += batch.num_rows - len(gone)"),),
        "clients/test_clients_v3.py::test_a_compaction_keeps_row_ids_and_applies_deletion_vectors[directory]",
    ),
    Bug(
        "a manifest that has row ids gets new ones",
        "issue 17, row lineage",
        0,
        (Change("maintain.decide.assigned_row_id", "if not is_data or own is not None:", "if not is_data:"),),
        "clients/test_clients_v3.py::test_a_compaction_after_an_upgrade_gives_every_row_an_id[directory]",
    ),
]
