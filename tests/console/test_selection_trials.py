"""Rows come and go while keys arrive: what is acted on is the id that stood under the cursor in the last painted frame.

Seeded, on the inbox of a real store. In most trials the list is given its rows by the trial, between and among keys
that are sent without waiting, and the frame is what the list drew when the screen was last painted. In a slice of them
the console runs in a pty, rows come and go in the store, and the frame is what a terminal shows.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.pilot import Pilot

from tests.console.at_the_console import console
from tests.console.pty_screen import PtyScreen
from tests.store import driver
from tests.support.people import open_store
from walkback_console.actions import Action
from walkback_console.app import Walkback, options_for
from walkback_console.deciding import Answers
from walkback_console.screens.inbox import InboxScreen, key_of
from walkback_console.subjects import Subject
from walkback_store import Store
from walkback_store.machine.people import RecordAbsent

LONG = os.environ.get("WALKBACK_FAULTS") == "long"
BLOCK = 100
"""Trials that share a console: to open one takes longer than a trial."""
BLOCKS = 200 if LONG else 10
IN_PTY = 400 if LONG else 40
ROWS = 30
KEYS = ("down", "down", "up", "j", "k", "v", "v", "v", "home", "end", "pagedown")


def unknown(store: Store, run_id: str) -> None:
    # An agent for each: what is verified again could be claimed by anybody who has its agent.
    driver.register(store, f"w-{run_id}", [run_id])
    driver.start(store, run_id, agent=run_id)
    held = driver.claim(store, f"w-{run_id}", run_id)
    driver.park_unknown(held, "1", tool=f"pay-{run_id}", description=f"for {run_id}", can_verify=True)


class Watched(Walkback):
    """The console, which notes down what it would do, and what was on the screen then."""

    def __init__(self, url: str) -> None:
        super().__init__(options_for(url, environ={}))
        self.acted: list[tuple[str, str]] = []
        self.frame = ""
        """The id under the cursor, in the last frame."""

    def _display(self, screen: Any, renderable: Any) -> None:
        super()._display(screen, renderable)
        if isinstance(screen, InboxScreen) and renderable is not None:
            drawn, height = screen.list._drawn, screen.list.size.height
            self.frame = under_cursor([drawn[y][0].text for y in range(height) if y in drawn])

    def carry_out(self, action: Action, subject: Subject, answers: Answers) -> None:
        self.acted.append((subject.place, self.frame))


def under_cursor(lines: list[str]) -> str:
    """The second line of a row ends with its run and step."""
    marked = [line for line in lines if line.startswith("▌")]
    found = re.search(r"(run-\d+) (#1)", marked[-1]) if marked else None
    return "".join(found.groups()) if found else ""


def send(app: Watched, key: str) -> None:
    """As the terminal's driver does, and on to the next."""
    assert app._driver is not None
    event = events.Key(key, key if len(key) == 1 else None)
    event.set_sender(app)
    app._driver.send_message(event)


async def trial(app: Watched, pilot: Pilot[None], screen: InboxScreen, rows: list[Any], seed: int) -> None:
    chance = random.Random(seed)
    here = chance.sample(rows, 12)

    def give() -> None:
        screen._got((screen._read_at, list(here)))

    give()
    for _ in range(chance.randint(1, 3)):
        what = chance.random()
        if what < 0.2 and len(here) < len(rows):
            here.insert(chance.randint(0, len(here)), chance.choice([row for row in rows if row not in here]))
        elif what < 0.4 and len(here) > 3:
            here.pop(chance.randrange(len(here)))
        elif what < 0.55 and len(here) > 3:
            here = [row for row in here if key_of(row) != screen.list.selected]
        if what < 0.55:
            give()
        for _ in range(chance.choice((1, 1, 2))):
            send(app, chance.choice(KEYS))
        if chance.random() < 0.5:
            await asyncio.sleep(chance.choice((0, 0, 0.002, 0.01)))
    await pilot.pause()


@pytest.mark.parametrize("block", range(BLOCKS))
def test_what_is_acted_on_is_what_the_last_frame_shows(block: int, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'walkback.db'}"
    with open_store(url) as store:
        for n in range(ROWS):
            unknown(store, f"run-{n:02}")
    seeds = range(block * BLOCK, (block + 1) * BLOCK)
    mismatches: list[tuple[int, str, str]] = []
    acted = 0

    async def run() -> None:
        nonlocal acted
        app = Watched(url)
        async with app.run_test(size=(80, 24)) as pilot:
            screen = app.top
            assert isinstance(screen, InboxScreen)
            while len(screen._rows) < ROWS or not screen.ready:
                await pilot.pause(0.01)
            rows = list(screen._rows)
            for seed in seeds:
                app.acted.clear()
                await trial(app, pilot, screen, rows, seed)
                acted += len(app.acted)
                mismatches.extend((seed, done, shown) for done, shown in app.acted if done != shown)
            app.leave()

    asyncio.run(run())
    assert mismatches == [], "seed, acted on, shown"
    assert acted >= BLOCK // 4  # else it says nothing


def test_in_a_terminal_too(store_url: str, tmp_path: Path) -> None:
    chance = random.Random(4)
    with open_store(store_url) as store:
        for n in range(12):
            unknown(store, f"run-{n:03}")
        alive, made, acted = [f"run-{n:03}" for n in range(12)], 12, 0
        with console(store_url, tmp_path / "home") as screen:
            for number in range(IN_PTY):
                screen.settle()
                before = verified(store, alive)
                for key in [*chance.choices(("down", "up", "j", "k", "home"), k=chance.randint(0, 3)), "v"]:
                    what = chance.random()
                    if what < 0.3:
                        unknown(store, f"run-{made:03}")
                        alive.append(f"run-{made:03}")
                        made += 1
                    elif what < 0.5 and len(alive) > 6:
                        gone = under_cursor(screen.display).partition("#")[0] if what < 0.4 else chance.choice(alive)
                        settle_elsewhere(store, gone)
                    screen.press(key)
                shown = last_frame(screen)
                done = verified(store, alive) - before
                acted += len(done)
                assert done <= {shown}, f"trial {number}: acted on {done}, shown {shown}\n{screen.text}"
                while len([r for r in alive if store.run(r)["status"] == "needs_operator"]) < 8:
                    unknown(store, f"run-{made:03}")
                    alive.append(f"run-{made:03}")
                    made += 1
        assert acted >= IN_PTY // 4


def verified(store: Store, runs: list[str]) -> set[str]:
    """The operations that somebody wanted to be verified again."""
    return {f"{run_id}#1" for run_id in runs if store.operation(run_id, "1").operation["verify_requested"]}


def settle_elsewhere(store: Store, run_id: str) -> None:
    """Somebody else deals with it, unless that has been done."""
    if run_id and store.run(run_id)["status"] == "needs_operator":
        store.do(RecordAbsent(actor=driver.BOB, run_id=run_id, step="1", reason="asked them"))


def last_frame(screen: PtyScreen) -> str:
    screen.settle()
    return under_cursor(screen.display)
