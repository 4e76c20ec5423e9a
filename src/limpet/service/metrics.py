"""What a service counts, in Prometheus' text format."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from limpet.runtime import Runtime
from limpet.service.wire import Request, Response

__all__ = ["Counter", "Gauge", "Histogram", "Metrics", "Requests"]

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)

Labels = tuple[str, ...]
_TEXT = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")


class Counter:
    """A number for each combination of labels; it only rises."""

    def __init__(self, name: str, help_: str, labels: Labels, runtime: Runtime) -> None:
        self.name = name
        self.help = help_
        self._labels = labels
        self._mutex = runtime.mutex()
        self._values: dict[Labels, float] = {}

    def add(self, *labels: str, amount: float = 1.0) -> None:
        """Count one more."""
        with self._mutex:
            self._values[labels] = self._values.get(labels, 0.0) + amount

    def lines(self) -> Iterator[str]:
        """The lines of the text format."""
        yield from _head(self.name, self.help, "counter")
        with self._mutex:
            values = sorted(self._values.items())
        for labels, value in values:
            yield f"{self.name}{_braces(zip(self._labels, labels, strict=True))} {value:.17g}"


class Gauge:
    """Numbers that are read when they are asked for, by the value of one label; without a label under ''."""

    def __init__(
        self, name: str, help_: str, read: Callable[[], Mapping[str, float]], label: str = "", kind: str = "gauge"
    ) -> None:
        self.name = name
        self.help = help_
        self._read = read
        self._label = label
        self._kind = kind

    def lines(self) -> Iterator[str]:
        """The lines of the text format."""
        yield from _head(self.name, self.help, self._kind)
        for value, number in self._read().items():
            labels = [(self._label, value)] if self._label else []
            yield f"{self.name}{_braces(labels)} {number:.17g}"


@dataclass(slots=True)
class _Cell:
    counts: list[int]
    total: float = 0.0


class Histogram:
    """How often a value fell below each bound, for each combination of labels."""

    def __init__(
        self, name: str, help_: str, labels: Labels, runtime: Runtime, bounds: tuple[float, ...] = SECONDS
    ) -> None:
        self.name = name
        self.help = help_
        self._labels = labels
        self._bounds = bounds
        self._mutex = runtime.mutex()
        self._cells: dict[Labels, _Cell] = {}

    def observe(self, value: float, *labels: str) -> None:
        """Count a value."""
        with self._mutex:
            cell = self._cells.get(labels)
            if cell is None:
                cell = self._cells[labels] = _Cell([0] * (len(self._bounds) + 1))
            cell.counts[bisect_left(self._bounds, value)] += 1
            cell.total += value

    def lines(self) -> Iterator[str]:
        """The lines of the text format."""
        yield from _head(self.name, self.help, "histogram")
        with self._mutex:
            found = [(labels, [*cell.counts], cell.total) for labels, cell in sorted(self._cells.items())]
        for labels, counts, total in found:
            named, below = [*zip(self._labels, labels, strict=True)], 0
            for bound, count in zip([*(f"{bound:g}" for bound in self._bounds), "+Inf"], counts, strict=True):
                below += count
                yield f"{self.name}_bucket{_braces([*named, ('le', bound)])} {below}"
            yield f"{self.name}_sum{_braces(named)} {total:.17g}"
            yield f"{self.name}_count{_braces(named)} {below}"


class Requests:
    """Requests by route and status, and how long they took."""

    def __init__(self, runtime: Runtime) -> None:
        self.seconds = Histogram("limpet_request_seconds", "Time to answer.", ("method", "route", "status"), runtime)

    def observe(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count an answer. `path` is that of the route, empty if there is none: a client cannot make up labels."""
        self.seconds.observe(seconds, method if path else "other", path, str(status))


class Metrics:
    """All that one process counts."""

    def __init__(self, *parts: Counter | Gauge | Histogram) -> None:
        self._parts = [*parts]

    def add(self, *parts: Counter | Gauge | Histogram) -> None:
        """Count these too."""
        self._parts += parts

    def text(self) -> str:
        """Everything, as Prometheus reads it."""
        return "".join(f"{line}\n" for part in self._parts for line in part.lines())

    def handle(self, _: Request) -> Response:
        """GET /metrics."""
        return Response(200, self.text().encode(), (_TEXT,))


def _head(name: str, help_: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {help_}"
    yield f"# TYPE {name} {kind}"


def _braces(labels: Iterable[tuple[str, str]]) -> str:
    inside = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{inside}}}" if inside else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
