"""`limpet demo`: a fleet at work while processes are killed and stopped, and a report of what the store holds.

`tasks` is what a user would write; `workers` are the processes that do it; `show` is the command and directs them;
`screen` prints; `report` reads everything back and compares it with what was pushed.
"""

__all__: list[str] = []
