"""How many seeds of each scenario `make test` runs, from 0 on."""

from __future__ import annotations

__all__ = ["SEEDS"]

SEEDS = {
    "kernel": 3_000,
    "directory": 2_000,
    "queue": 1_500,
    "queue_far": 500,
    "durable": 1_000,
    "swept": 100,
    "drop": 150,
    "lives": 400,
    "backup": 150,
    "supervisor": 1_000,
    "index": 1_000,
    "index_far": 500,
    "index_disk": 250,
    "catalog": 1_000,
    "maintain": 40,
}
