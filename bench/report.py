"""What a benchmark measured, and whether it met its bar."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Entry:
    name: str
    value: float
    unit: str
    bar: str | None = None
    ok: bool | None = None


class Report:
    """Collects entries; a later one with the same name takes the place of the earlier."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    def add(self, name: str, value: float, unit: str, bar: str | None = None, ok: bool | None = None) -> None:
        """Record one number. `bar` is what it is held against, such as "<= 2048"; `ok` is None without a bar."""
        if (bar is None) != (ok is None):
            raise ValueError(f"{name}: a bar and its verdict come together; got bar={bar!r}, ok={ok!r}")
        self._entries[name] = Entry(name, value, unit, bar, ok)

    @property
    def entries(self) -> list[Entry]:
        return sorted(self._entries.values(), key=lambda entry: entry.name)

    @property
    def ok(self) -> bool:
        return all(entry.ok is not False for entry in self._entries.values())


def table(entries: Iterable[Entry]) -> str:
    """The entries as aligned text."""
    rows = [("name", "value", "unit", "bar", "ok")]
    rows += [(entry.name, _number(entry.value), entry.unit, entry.bar or "", _verdict(entry.ok)) for entry in entries]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = []
    for name, value, unit, bar, ok in rows:
        cells = (
            name.ljust(widths[0]),
            value.rjust(widths[1]),
            unit.ljust(widths[2]),
            bar.ljust(widths[3]),
            ok.ljust(widths[4]),
        )
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def merge_into(path: Path, entries: Iterable[Entry]) -> None:
    """Write the entries to a JSON file, and keep those of other names that it already holds."""
    known = {row["name"]: row for row in json.loads(path.read_text())} if path.exists() else {}
    known |= {entry.name: asdict(entry) for entry in entries}
    rows = [known[name] for name in sorted(known)]
    path.write_text(json.dumps(rows, indent=2) + "\n")


def _number(value: float) -> str:
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:,.3g}"


def _verdict(ok: bool | None) -> str:
    return {None: "", True: "yes", False: "NO"}[ok]
