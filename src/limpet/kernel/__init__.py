"""The kernel: all that the other rooms stand on, and the part that nobody has to touch.

Read `store/api.py` (the requests that a store answers), `store/outcome.py` (whether a write counts as won), `cell`
(one value that is replaced by compare-and-swap), `lease` (locks with fencing), then `keys.py` (every name in the
bucket) and `records.py` (every stored value, with its bounds; `models.py`: users' classes that write and read
themselves). `runtime.py` holds clock, randomness and threads, so that the simulation can replace them; `waiting.py`
decides when to try or look again; `user_code.py` is the border to a user's code. `doctor.py`
and `rights.py` examine a bucket and its credentials.

The kernel imports nothing of the rest of Limpet. Imports inside of it go down only: doctor, lease, cell, store, records
and keys, models and waiting, runtime, user_code, errors.
"""

__all__: list[str] = []
