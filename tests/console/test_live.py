"""The console while the store lives: it hears what others commit, says when it hears nothing, and finds it again."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.console.pty_screen import PtyScreen
from tests.console.terminal import command
from tests.store import driver
from tests.support.people import open_store
from tests.support.proxy import CuttingProxy
from walkback_console.actions import find
from walkback_console.palette import BACKGROUNDS, DARK
from walkback_console.subjects import load_operation
from walkback_store import Store
from walkback_store.machine.people import AddNote

LOST = "THE STORE DOES NOT ANSWER"
OLD = re.compile(r"what you see is (\d+) s old")
SURFACE = BACKGROUNDS[DARK]["surface"].lstrip("#")
CURSOR = BACKGROUNDS[DARK]["cursor"].lstrip("#")


def trouble(store: Store, name: str, *, dollars: int = 0) -> None:
    """One more unknown write; each of a tool of its own, so that it is a row of its own."""
    driver.start(store, name)
    h = driver.claim(store)
    assert h.run_id == name
    driver.park_unknown(
        h, "1", tool=f"tool_{name}", description=f"call of {name}", stake=f"${dollars}", stake_value=float(dollars)
    )


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with open_store(store_url) as found:
        driver.register(found)
        yield found


def console(url: str, *more: str) -> PtyScreen:
    return PtyScreen(command("--store", url, *more), rows=30, env={"COLORTERM": "truecolor"})


def line_of(screen: PtyScreen, text: str) -> int:
    return next(n for n, line in enumerate(screen.display) if text in line)


def rows_of(screen: PtyScreen, until: int) -> list[str]:
    """What each row above a line is about, without the scroll bar beside it."""
    return [line[:-1] for line in screen.display[:until] if "call of" in line]


def under_cursor(screen: PtyScreen) -> str:
    """The rows that have the bar in front of them, as text."""
    return "\n".join(line for line in screen.display if line.startswith("▌"))


# --- what others commit -------------------------------------------------------------------------------------------


def test_a_new_row_appears_without_a_key_and_flashes(store: Store, store_url: str) -> None:
    trouble(store, "first")
    with console(store_url) as screen:
        screen.wait_for("call of first")
        screen.settle()
        trouble(store, "second")
        screen.wait_for("call of second")

        def flashes(screen: PtyScreen) -> bool:
            # Colours of ours, and neither that of the list nor that of the cursor.
            line = screen.attributes(line_of(screen, "call of second"))
            return any("second" in run.text and run.bg not in {SURFACE, CURSOR} for run in line)

        def calm(screen: PtyScreen) -> bool:
            return not flashes(screen)

        screen.wait_for(flashes)
        screen.wait_for(calm)
        screen.wait_for("2 need you")
        assert "call of first" in under_cursor(screen)


def test_rows_above_and_below_do_not_move_what_is_under_the_cursor(store: Store, store_url: str) -> None:
    for n in range(12):
        trouble(store, f"run-{n:02}", dollars=100)
    with console(store_url) as screen:
        screen.wait_for("call of run-00")
        screen.press(*["down"] * 8)
        screen.wait_for(lambda s: "call of run-08" in under_cursor(s))
        screen.settle()
        before = line_of(screen, "call of run-08")
        above = rows_of(screen, before)
        trouble(store, "worth-more", dollars=999)  # goes to the very top
        trouble(store, "worth-less", dollars=1)  # and this one to the very bottom
        screen.wait_for("14 need you")
        screen.wait_for("1 new ↑")
        assert line_of(screen, "call of run-08") == before
        assert "call of run-08" in under_cursor(screen)
        assert rows_of(screen, before) == above
        screen.press("home")
        screen.wait_for("call of worth-more")
        screen.wait_gone("new ↑")


def test_what_changed_on_an_opened_operation_is_shown_where_it_is(store: Store, store_url: str) -> None:
    trouble(store, "first")
    with console(store_url, "open", "first#1") as screen:
        screen.wait_for("you can")
        screen.settle()
        screen.press("down", "down")
        shown = screen.settle().splitlines()
        store.do(AddNote(actor="operator:bob", run_id="first", reason="mine", owner="bob"))
        screen.wait_for("owner bob")
        after = screen.text.splitlines()
        where = next(n for n, line in enumerate(shown) if "contract" in line)
        assert "contract" in after[where]  # the page has not scrolled


def test_a_row_that_is_dealt_with_elsewhere_stays_as_a_ghost_under_the_cursor(store: Store, store_url: str) -> None:
    trouble(store, "first")
    with console(store_url) as screen:
        screen.wait_for(lambda s: "call of first" in under_cursor(s) and "safest next" in s.text)
        subject = load_operation(store, "first", "1")
        evidence = {"reason": "asked the shop", "result": "null", "evidence": "its ledger"}
        store.do(*find("fail").make(subject, evidence, driver.ANN))  # type: ignore[misc]
        screen.wait_for("gone:")
        screen.wait_for("nothing needs you")
        assert "call of first" in under_cursor(screen)
        screen.press("f")
        screen.wait_for("that row is gone")
        assert "Cancel" not in screen.text


# --- the database lost, and found ---------------------------------------------------------------------------------


@contextlib.contextmanager
def losable(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str, Lose, Lose]]:
    """Two addresses of one store, ours and the console's, and how the console loses and finds it."""
    if kind == "sqlite":
        file, away = tmp_path / "walkback.db", tmp_path / "elsewhere"
        url = f"sqlite:///{file}"
        yield url, url, lambda: file.rename(away), lambda: away.rename(file)
        return
    proxy: CuttingProxy = request.getfixturevalue("pg_proxy")
    url = request.getfixturevalue("pg_url")

    def lose() -> None:
        if kind == "postgresql, cut":
            proxy.refuse(True)
            proxy.cut_all()
        else:
            proxy.stall()

    def find() -> None:
        if kind == "postgresql, cut":
            proxy.refuse(False)
        else:
            proxy.stall(False)

    yield url, proxy.url, lose, find


Lose = Callable[[], object]
KINDS = ["sqlite", "postgresql, cut", "postgresql, silent"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_database_is_said_grows_old_and_is_found_again(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with losable(kind, request, tmp_path) as (url, seen_by_console, lose, find):
        with open_store(url) as store:
            driver.register(store)
            trouble(store, "first")
        with console(seen_by_console) as screen:
            screen.wait_for("call of first")
            screen.wait_for("1 needs you")
            lose()
            screen.wait_for(LOST)
            ages: list[int] = []

            def has_grown(screen: PtyScreen) -> bool:
                ages.extend(int(found) for found in OLD.findall(screen.text))
                return bool(ages) and ages[-1] >= ages[0] + 3

            screen.wait_for(has_grown)
            assert ages == sorted(ages)
            assert "call of first" in screen.text  # what was read is still there
            screen.press("down", "up")  # and keys still do something
            find()
            screen.wait_gone(LOST)
            with open_store(url) as store:
                driver.register(store, "v")
                driver.start(store, "second")
                driver.park_unknown(driver.claim(store, "v"), "1", tool="other", description="call of second")
            screen.wait_for("call of second")
            screen.wait_for("2 need you")
            screen.press("q")
            assert screen.exit_code() == 0
            assert b"Traceback" not in screen.raw


@pytest.mark.parametrize("kind", KINDS)
def test_q_leaves_while_the_database_is_lost(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with losable(kind, request, tmp_path) as (url, seen_by_console, lose, find):
        with open_store(url) as store:
            driver.register(store)
            trouble(store, "first")
        with console(seen_by_console) as screen:
            screen.wait_for("1 needs you")
            lose()
            screen.wait_for(LOST)
            screen.press("q")
            assert screen.exit_code() == 0
            assert b"Traceback" not in screen.raw
            find()


def test_what_was_decided_while_the_database_is_lost_is_said_not_to_be_known(
    pg_url: str, pg_proxy: CuttingProxy
) -> None:
    with open_store(pg_url) as store:
        driver.register(store)
        trouble(store, "first")
    with console(pg_proxy.url) as screen:
        screen.wait_for("safest next")
        screen.settle()
        screen.press("f")
        screen.wait_for("Cancel")
        pg_proxy.refuse(True)
        pg_proxy.cut_all()
        screen.type("looked it up\r")
        screen.wait_for("IT IS NOT KNOWN TO BE RECORDED")
        pg_proxy.refuse(False)
        screen.wait_gone(LOST)


# --- no store at all ----------------------------------------------------------------------------------------------


def test_a_store_that_is_not_there_is_said_and_the_command_ends_with_3(tmp_path: Path) -> None:
    with PtyScreen(command("--store", str(tmp_path / "nothing.db"))) as screen:
        assert screen.exit_code() == 3
        assert "nothing.db" in screen.text
        assert b"Traceback" not in screen.raw
        assert b"\x1b[?1049h" not in screen.raw  # no full screen was opened for it


def test_a_server_that_does_not_answer_is_said_and_the_command_ends_with_3(pg_url: str, pg_proxy: CuttingProxy) -> None:
    open_store(pg_url).close()
    pg_proxy.refuse(True)
    with PtyScreen(command("--store", pg_proxy.url)) as screen:
        assert screen.exit_code() == 3
        assert "doesnotanswer" in "".join(screen.text.split())  # wherever it is folded
        assert b"Traceback" not in screen.raw


# --- leaving while something is read ------------------------------------------------------------------------------


def test_going_back_before_a_screen_has_been_read_does_no_harm(store: Store, store_url: str) -> None:
    for n in range(3):
        driver.start(store, f"run-{n}")
        driver.park_unknown(driver.claim(store), "1", description=f"call of run-{n}")
    with console(store_url) as screen:
        screen.wait_for("3 need you")
        screen.settle()
        for keys in (("enter", "esc"), ("t", "esc"), (":", *"runs", "enter", "esc"), (":", *"workers", "enter", "esc")):
            for _ in range(5):
                screen.press(*keys)
                screen.settle()
                screen.wait_for("safest next")
        screen.press("q")
        assert screen.exit_code() == 0
        assert b"Traceback" not in screen.raw
