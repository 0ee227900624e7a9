"""Snapshots of Textual screens as text that a person can read in a diff.

A file has the visible characters of each line, and below the lines that are not plain which runs of cells look how:

    │Inbox   3 new                                                                   │
        0-5 bold #ffffff on #203040; 8-13 #e0af68

`WALKBACK_SNAPSHOTS=write` writes the files anew; look at the difference before it is committed.
"""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.style import Style
from textual._compositor import LayoutUpdate
from textual.app import App
from textual.pilot import Pilot

FOLDER = Path(__file__).parent / "snapshots_kept"  # beside a module, a folder must not have its name
WRITE = "WALKBACK_SNAPSHOTS"
MARKS = ("bold", "dim", "italic", "underline", "strike", "reverse", "blink")


class Cell(NamedTuple):
    """Neighbouring text of one style."""

    text: str
    style: str


async def snapshot(
    app: App[Any],
    name: str,
    *,
    size: tuple[int, int] = (80, 24),
    drive: Callable[[Pilot[Any]], Awaitable[object]] | None = None,
    folder: Path = FOLDER,
) -> None:
    """Run the app, drive it to where it is of interest, wait until it is idle, and compare what it shows."""
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        if drive is not None:
            await drive(pilot)
        await idle(pilot)
        shown = screen_text(app)
    compare(name, shown, folder)


async def idle(pilot: Pilot[Any]) -> None:
    """Until workers, messages and animations have come to rest."""
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()
    await pilot.wait_for_scheduled_animations()
    await pilot.pause()


def screen_text(app: App[Any]) -> str:
    """The most common background is named once, and left out everywhere else."""
    screen = screen_lines(app)
    base = _most_common_background(screen)
    lines = [f"base {base or 'plain'}"]
    for cells in screen:
        lines.append("│" + "".join(cell.text for cell in cells) + "│")
        runs = _runs(cells, base)
        if runs:
            lines.append("    " + "; ".join(runs))
    return "\n".join(lines) + "\n"


def screen_lines(app: App[Any]) -> list[list[Cell]]:
    """What is on the screen, line by line, with what shines through from the screens below."""
    update = app.screen._compositor.render_update(full=True, screen_stack=app._background_screens)
    assert isinstance(update, LayoutUpdate)
    return [
        _joined(Cell(segment.text, described(segment.style)) for strip in strips for segment in strip)
        for strips in update.strips
    ]


def described(style: Style | None) -> str:
    """A style in words, the same whatever the order in which it was put together; empty if it is plain."""
    if style is None:
        return ""
    words = [mark for mark in MARKS if getattr(style, mark)]
    if style.color is not None and not style.color.is_default:
        words.append(style.color.name)
    if style.bgcolor is not None and not style.bgcolor.is_default:
        words.append(f"on {style.bgcolor.name}")
    return " ".join(words)


def compare(name: str, shown: str, folder: Path = FOLDER) -> None:
    file = folder / f"{name}.txt"
    if os.environ.get(WRITE) == "write":
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(shown)
        return
    if not file.exists():
        raise AssertionError(f"there is no snapshot {name!r} yet; {WRITE}=write makes it:\n{shown}")
    wanted = file.read_text()
    if shown != wanted:
        difference = difflib.unified_diff(
            wanted.splitlines(), shown.splitlines(), f"{name}, as it was", f"{name}, as it is", lineterm=""
        )
        raise AssertionError("\n".join([f"{name} looks different ({WRITE}=write accepts it):", *difference]))


def _joined(cells: Iterable[Cell]) -> list[Cell]:
    found: list[Cell] = []
    for cell in cells:
        if found and found[-1].style == cell.style:
            found[-1] = Cell(found[-1].text + cell.text, cell.style)
        elif cell.text:
            found.append(cell)
    return found


def _most_common_background(screen: list[list[Cell]]) -> str:
    counts: Counter[str] = Counter()
    for cells in screen:
        for text, style in cells:
            counts[style[style.find("on ") :] if "on " in style else ""] += cell_len(text)
    return counts.most_common(1)[0][0]


def _runs(cells: list[Cell], base: str) -> list[str]:
    """By column, as a terminal counts them: the first, and the one after the last."""
    found, column = [], 0
    for text, style in cells:
        end = column + cell_len(text)
        said = style.removesuffix(base).rstrip()
        if said:
            found.append(f"{column}-{end} {said}")
        column = end
    return found
