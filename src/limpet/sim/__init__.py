"""Limpet in a world of virtual time, faulty networks and dying processes, where one seed decides everything.

`python -m limpet.sim kernel --seed 7` runs one seed; `... soak --seconds 600` looks for new ones.
"""

__all__: list[str] = []
