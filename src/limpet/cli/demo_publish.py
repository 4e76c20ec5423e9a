"""How `limpet demo` makes its index an Iceberg table, where the catalog's packages are installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet.cli.demo_screen import MARGIN
from limpet.cli.demo_tasks import INDEX
from limpet.cli.queue_options import many
from limpet.cli.shared import clean
from limpet.errors import Unsupported

if TYPE_CHECKING:
    from limpet.app import Fleet
    from limpet.app.publish import Published
    from limpet.cli.demo_screen import Screen


def publish(screen: Screen, fleet: Fleet) -> Published | None:
    """Publish the index, say so and how to query it; None, and a line, without the packages.   Raises: LimpetError."""
    from limpet.cli.catalog.options import demand_extra

    try:
        demand_extra()
    except Unsupported as missing:
        screen.say(f"[dim]{MARGIN}as an Iceberg table too: {clean(missing.hint)}[/dim]")
        return None
    with fleet.meter.measure() as cost:
        done = fleet.publish_index(INDEX, compile=False)
    name = ".".join((*done.namespace, done.table))
    wrote = f"{many(done.records, 'record')} in {many(done.files, 'Parquet file')}, with {cost.total()} requests"
    screen.say(f"[dim]{MARGIN}published as the Iceberg table {clean(name)}: {wrote}[/dim]")
    scan = f"from iceberg_scan({clean(repr(done.metadata_location))})"
    screen.say(f"[dim]{MARGIN}DuckDB: install iceberg; load iceberg; {scan}[/dim]")
    return done
