"""Laying texts out on one line of a list."""

from __future__ import annotations

from rich.text import Text

LEAST = 16
"""Columns that are left to the one that gives way: however long a stake is made, what it is for stays readable."""


def columns(width: int, *parts: tuple[Text, int]) -> Text:
    """Texts in columns of these widths; one of 0 takes what is left. A text that is too long takes from that one, and
    gives back what it took where too little would be left."""
    sizes = [max(size, text.cell_len + 1) if size else 0 for text, size in parts]
    over = sum(sizes) + LEAST * sizes.count(0) - width
    for n in sorted(range(len(parts)), key=lambda n: parts[n][1] - sizes[n]):  # what took most first
        back = max(0, min(over, sizes[n] - parts[n][1]))
        sizes[n] -= back
        over -= back
    room = max(0, width - sum(sizes))
    line = Text()
    for (text, asked), size in zip(parts, sizes, strict=True):
        cell = text.copy()
        wanted = size if asked else room
        if cell.cell_len > wanted - 1:
            cell.truncate(max(1, wanted - 1), overflow="ellipsis")
        cell.pad_right(max(0, wanted - cell.cell_len))
        line.append(cell)
    line.rstrip()
    return line


def two_ends(first: str, second: str, width: int) -> Text:
    """What is done and where, at both ends of a line. The preview below has all of what does not fit."""
    end = Text(second, "dim")
    start = Text(first)
    room = width - end.cell_len - 2
    if room < min(start.cell_len, 24):
        end.truncate(max(8, width - min(start.cell_len, width // 2) - 2), overflow="ellipsis")
        room = width - end.cell_len - 2
    start.truncate(max(1, room), overflow="ellipsis")
    start.pad_right(max(2, width - start.cell_len - end.cell_len))
    return start.append(end)
