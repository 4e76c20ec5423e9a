"""Maintenance of tables: expiry of snapshots, compaction of small files, removal of orphans."""

__all__: list[str] = []
