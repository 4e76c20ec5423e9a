"""Limpet in a simulated world of virtual time, faulty networks and dying processes, all decided by one seed.

`python -m limpet.sim kernel --seed 7` runs one seed; `... soak --seconds 600` tries new ones.

    world       virtual time, the scheduler, the trace; the runtime of a simulated process
    bucket      the object store, and the network between it and a process
    actors      faults and when they strike; slots of processes that take turns, crash and restart; `perform` runs them
    runs        the scenarios by name; many seeds, fewer faults, a readable trace

A scenario is one file: its actors, a model of what they did and were shown, and the invariants (`kernel`, which also
has the check for linearizability, `directory`, which also has the file system of a machine that may lose power,
`queue`, `supervisor`, `index`, `catalog`).
"""

__all__: list[str] = []
