"""Pictures of every main screen, from real runs: `make screenshots`.

A store is filled by the real runtime against a world that breaks; then the console is opened on it, once for each size
and theme, and walked through. Nothing is drawn by hand. What differs between two runs are times and names of machines.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, cast

from textual.pilot import Pilot

from screenshots.small_png import small_png
from tests.console.incident import Incident, fill
from tests.console.pictures import local_font, to_png
from walkback_console.app import Walkback, options_for
from walkback_console.palette import DARK, LIGHT

HERE = Path(__file__).parent
SIZES = ((80, 24), (140, 40))
THEMES = {"dark": DARK, "light": LIGHT}
PATIENCE = 15.0
ZOOM = 0.75

At = Pilot[None]
Walk = Callable[[At, Incident], Awaitable[object]]


class Shot(NamedTuple):
    name: str
    says: str
    walk: Walk


# --- walking ------------------------------------------------------------------------------------------------------


async def until(pilot: At, *words: str) -> None:
    """Until these words are on the screen, and then until it is idle."""
    end = time.monotonic() + PATIENCE
    while not all(word in " ".join(shown(pilot).split()) for word in words):
        if time.monotonic() > end:
            raise RuntimeError(f"{words} never came:\n{shown(pilot)}")
        await pilot.pause(0.05)
    await pilot.pause(0.4)


def shown(pilot: At) -> str:
    strips = pilot.app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


def console_of(pilot: At) -> Walkback:
    return cast(Walkback, pilot.app)


async def inbox(pilot: At, incident: Incident) -> None:
    await until(pilot, "need you", "safest next")


async def place(pilot: At, where: str, *words: str) -> None:
    await until(pilot, "need you", "safest next")
    console_of(pilot).open_place(where)
    await until(pilot, *words)


async def operation(pilot: At, incident: Incident) -> None:
    await place(pilot, "#".join(incident.mail), "UNKNOWN", "you can")


async def approval(pilot: At, incident: Incident) -> None:
    await place(pilot, "#".join(incident.approvals["long"]), "deploy", "refuse")


async def batch(pilot: At, incident: Incident) -> None:
    await inbox(pilot, incident)
    await pilot.press("down", "enter")
    await until(pilot, "40 alike", "[all 40]")


async def happened(pilot: At, incident: Incident) -> None:
    await operation(pilot, incident)
    await pilot.press("h")
    await until(pilot, "Cancel", "Evidence")


async def freeze(pilot: At, incident: Incident) -> None:
    await inbox(pilot, incident)
    await pilot.press("down", "F")
    await until(pilot, "Cancel", "Freeze")


async def runs(pilot: At, incident: Incident) -> None:
    await command(pilot, "runs", "Runs", "runs")


async def run(pilot: At, incident: Incident) -> None:
    await place(pilot, incident.failed[-1], "FAILED", "reconcile")


async def state(pilot: At, incident: Incident) -> None:
    await run(pilot, incident)
    await pilot.press("end", "s")
    await until(pilot, "after step")


async def diff(pilot: At, incident: Incident) -> None:
    await run(pilot, incident)
    await pilot.press("home", "down", "d")
    await pilot.pause(0.5)


async def workers(pilot: At, incident: Incident) -> None:
    await command(pilot, "workers", "Workers", "BREAKER")


async def help_(pilot: At, incident: Incident) -> None:
    await operation(pilot, incident)
    await pilot.press("question_mark")
    await until(pilot, "Help for the screen")


async def command(pilot: At, typed: str, *words: str) -> None:
    await until(pilot, "need you", "safest next")
    console_of(pilot).command(typed)
    await until(pilot, *words)


SHOTS = (
    Shot("inbox", "What needs a person, most urgent first, with a preview of the selected row.", inbox),
    Shot("operation", "A mail that may have been sent: what is known of it, and what can be done.", operation),
    Shot("approval", "A deployment that asks first; approving waits until all arguments have been seen.", approval),
    Shot("batch", "Forty unknown charges of one outage, looked at and decided about together.", batch),
    Shot("happened", "The dialog that records that something happened, with its evidence.", happened),
    Shot("freeze", "The dialog that freezes a tool.", freeze),
    Shot("runs", "All runs, newest first.", runs),
    Shot("run", "A failed run: its timeline.", run),
    Shot("state", "Its state after the last step.", state),
    Shot("diff", "What a step changed in it.", diff),
    Shot("workers", "Freezes, open breakers and workers.", workers),
    Shot("help", "Every key of a screen, and why one does nothing just now.", help_),
)


# --- drawing ------------------------------------------------------------------------------------------------------


async def shoot(shot: Shot, incident: Incident, size: tuple[int, int], theme: str) -> str:
    """An SVG with no font from elsewhere."""
    options = replace(options_for(incident.url, environ={}), theme=THEMES[theme], where="production/walkback.db")
    app = Walkback(options)
    async with app.run_test(size=size) as pilot:
        await shot.walk(pilot, incident)
        return local_font(app.export_screenshot(title="walkback"))


def main(names: list[str]) -> None:
    chosen = [shot for shot in SHOTS if not names or shot.name in names]
    with tempfile.TemporaryDirectory(prefix="walkback-screenshots-") as folder:
        incident = fill(f"sqlite:///{Path(folder) / 'walkback.db'}", Path(folder) / "world", wide=False)
        for shot in chosen:
            for width, height in SIZES:
                for theme in THEMES:
                    svg = asyncio.run(shoot(shot, incident, (width, height), theme))
                    file = HERE / f"{shot.name}-{width}x{height}-{theme}"
                    file.with_suffix(".svg").write_text(svg)
                    file.with_suffix(".png").write_bytes(small_png(to_png(svg, zoom=ZOOM)))
                    print(file.with_suffix(".png").relative_to(HERE.parent), flush=True)
    (HERE / "README.md").write_text(readme())


def readme() -> str:
    sizes = " and ".join(f"{width}x{height}" for width, height in SIZES)
    lines = [
        "# Screenshots",
        "",
        f"Each screen at {sizes}, dark and light, as SVG and PNG: `NAME-80x24-dark.png`. `make screenshots` makes them",
        "anew from real runs; `make screenshots ARGS=inbox` makes one.",
        "",
        *(f"- [{shot.name}]({shot.name}-80x24-dark.png): {shot.says}" for shot in SHOTS),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    os.environ["TEXTUAL_ANIMATIONS"] = "none"
    main(sys.argv[1:])
