"""What a fork server has once for all planted bugs: where the code of limpet is defined, and what limpet and its tests
import; nothing of limpet.

The modules of limpet and of the simulation are imported to learn what they import, and forgotten: each fork imports
them anew, with its bug.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module

from planted.bug import definitions

__all__: list[str] = []

MODULES = (
    "hypothesis",
    "limpet.pytest_plugin",
    "sim.backup",
    "sim.catalog",
    "sim.index",
    "sim.maintain",
    "sim.supervisor",
    "planted.plant",
    "pytest",
)

for _name in MODULES:
    import_module(_name)
definitions()
for _name in [name for name in sys.modules if name.split(".")[0] in ("limpet", "sim")]:
    del sys.modules[_name]
gc.freeze()
