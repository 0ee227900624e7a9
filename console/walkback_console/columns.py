"""Laying texts out on one line of a list."""

from __future__ import annotations

from rich.text import Text


def columns(width: int, *parts: tuple[Text, int]) -> Text:
    """Texts in columns of these widths; one of 0 takes what is left. A text that is too long takes from that one."""
    fixed = [(text, max(size, text.cell_len + 1) if size else 0) for text, size in parts]
    room = max(0, width - sum(size for _, size in fixed))
    line = Text()
    for text, size in fixed:
        cell = text.copy()
        wanted = size or room
        if cell.cell_len > wanted - 1 and not size:
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
