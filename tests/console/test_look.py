"""What the console looks like: readable in every colour and in none, at every size, with and without Unicode."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.at_the_console import console, go, see
from tests.console.incident import Incident, fill
from tests.console.pty_screen import PtyScreen, Run
from tests.console.terminal import command
from walkback_console.palette import BACKGROUNDS, DARK, LIGHT, MEANINGS, STATUS, mark
from walkback_store.words import OperationStatus, RunStatus

READABLE = 4.5
APART = 15.0
"""Steps of colour in CIE Lab; anybody sees 10 of them."""

# How somebody sees who lacks one kind of cone, in linear light.
LACKING = {
    "protanopia": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "deuteranopia": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
}
Colour = tuple[float, float, float]


@pytest.fixture(scope="module")
def incident(tmp_path_factory: pytest.TempPathFactory) -> Incident:
    """The longest words, the largest amounts and wide characters."""
    folder = tmp_path_factory.mktemp("look")
    return fill(f"sqlite:///{folder / 'walkback.db'}", folder / "world", urgent=True)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Incident:
    folder = tmp_path_factory.mktemp("narrow")
    return fill(f"sqlite:///{folder / 'walkback.db'}", folder / "world", wide=False)


def opened(url: str, env: dict[str, str] | None = None, *, cols: int = 80, rows: int = 24) -> PtyScreen:
    return PtyScreen(command("--store", url), cols=cols, rows=rows, env=env)


# --- colours ------------------------------------------------------------------------------------------------------


def linear(colour: str) -> Colour:
    parts = [int(colour.lstrip("#")[n : n + 2], 16) / 255 for n in (0, 2, 4)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return r, g, b


def contrast(one: str, other: str) -> float:
    light, dark = sorted(
        (0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (linear(one), linear(other))), reverse=True
    )
    return (light + 0.05) / (dark + 0.05)


def lab(rgb: Colour) -> Colour:
    r, g, b = (min(1.0, max(0.0, c)) for c in rgb)
    xyz = (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089,
    )
    x, y, z = (c ** (1 / 3) if c > 0.008856 else 7.787 * c + 16 / 116 for c in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def colour_of(theme: str, meaning: str) -> str:
    return MEANINGS[theme][meaning].split()[-1]


@pytest.mark.parametrize("theme", [DARK, LIGHT])
def test_every_meaning_is_readable_on_every_background(theme: str) -> None:
    poor = {
        (meaning, background): found
        for meaning in MEANINGS[theme]
        for background, colour in BACKGROUNDS[theme].items()
        if (found := contrast(colour_of(theme, meaning), colour)) < READABLE
    }
    assert poor == {}


@pytest.mark.parametrize("theme", [DARK, LIGHT])
@pytest.mark.parametrize("lacking", LACKING)
def test_good_bad_and_unsure_stay_apart_for_the_colour_blind(theme: str, lacking: str) -> None:
    matrix = LACKING[lacking]
    seen = {}
    for meaning in ("good", "bad", "unsure"):
        rgb = linear(colour_of(theme, meaning))
        r, g, b = (sum(m * c for m, c in zip(row, rgb, strict=True)) for row in matrix)
        seen[meaning] = lab((r, g, b))
    for one, other in itertools.combinations(seen, 2):
        distance = sum((a - b) ** 2 for a, b in zip(seen[one], seen[other], strict=True)) ** 0.5
        assert distance >= APART, (one, other, distance)


def runs_of(screen: PtyScreen) -> Iterator[Run]:
    for line in range(len(screen.display)):
        yield from (run for run in screen.attributes(line) if run.text.strip() and "reverse" not in run.marks)


def poorly_readable(screen: PtyScreen) -> list[tuple[str, str, str]]:
    """Text that has too little contrast as it was really painted; lines and bars are no text."""
    drawn = set("─│╭╮╰╯▌▁▂▃▄▅▆▇█▔")
    return [
        (run.text, run.fg, run.bg)
        for run in runs_of(screen)
        if set(run.text) - drawn - {" "} and contrast(run.fg, run.bg) < READABLE
    ]


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_what_is_painted_is_readable_on_every_screen(theme: str, narrow: Incident, tmp_path: Path) -> None:
    with opened(narrow.url, {"WALKBACK_THEME": theme, "COLORTERM": "truecolor"}, cols=100, rows=30) as screen:
        see(screen, "need you", "safest next")
        screen.settle()
        assert poorly_readable(screen) == []
        backgrounds = {run.bg for run in runs_of(screen)}
        assert BACKGROUNDS[DARK if theme == "dark" else LIGHT]["cursor"].lstrip("#") in backgrounds
        for keys, words in (
            ("?", "Help for the screen"),
            (":runs\r", "Runs"),
            (":workers\r", "BREAKER"),
            (":log\r", "Log"),
            (f":open {narrow.mail[0]}#3\r", "UNKNOWN"),
            (f":open {narrow.approvals['short'][0]}#1\r", "AWAITING APPROVAL"),
            (f":open {narrow.failed[-1]}\r", "FAILED"),
        ):
            screen.type(keys[0])
            screen.settle()
            screen.type(keys[1:])
            see(screen, words)
            screen.settle()
            assert poorly_readable(screen) == [], words
            screen.press("esc")
            see(screen, "safest next")
            screen.settle()


def test_what_flashes_is_readable_while_it_flashes(tmp_path: Path) -> None:
    from tests.console.test_live import trouble
    from tests.store import driver
    from tests.support.people import open_store

    url = f"sqlite:///{tmp_path / 'walkback.db'}"
    with open_store(url) as store:
        driver.register(store)
        trouble(store, "first")
        for theme in (DARK, LIGHT):
            env = {"COLORTERM": "truecolor", "WALKBACK_THEME": theme.removeprefix("walkback-")}
            with opened(url, env) as screen:
                see(screen, "safest next")
                screen.settle()
                trouble(store, f"then-{theme}")
                still = {BACKGROUNDS[theme][name].lstrip("#") for name in ("surface", "panel", "cursor", "background")}
                found: list[Run] = []

                def flashes(screen: PtyScreen, still: set[str] = still, found: list[Run] = found) -> bool:
                    found[:] = [run for run in runs_of(screen) if run.bg not in still]
                    return bool(found)

                screen.wait_for(flashes)
                assert [run for run in found if contrast(run.fg, run.bg) < READABLE] == []


# --- no colours ---------------------------------------------------------------------------------------------------


def test_every_status_has_a_mark_and_a_word_and_no_two_that_matter_share_a_mark() -> None:
    for ascii_only in (False, True):
        operations = {status.value: mark(status.value, ascii_only=ascii_only) for status in OperationStatus}
        assert len(set(operations.values())) == len(operations), operations
        runs = {status.value: mark(status.value, ascii_only=ascii_only) for status in RunStatus}
        assert len(set(runs.values())) == len(runs), runs
    assert {status.value for status in (*OperationStatus, *RunStatus)} <= STATUS.keys()


def test_without_colours_the_same_words_are_on_the_screen(narrow: Incident) -> None:
    def walk(screen: PtyScreen) -> list[list[str]]:
        found = []
        see(screen, "need you", "safest next")
        screen.settle()
        found.append(screen.colours_stripped())
        for place, words in ((f"{narrow.mail[0]}#3", "UNKNOWN"), (narrow.failed[-1], "FAILED"),
                             (narrow.last_good, "SUCCEEDED")):  # fmt: skip
            screen.press(":")
            screen.settle()
            screen.type(f"open {place}\r")
            see(screen, words)
            screen.settle()
            found.append(screen.colours_stripped())
        return [[line for line in text.splitlines() if " UTC" not in line] for text in found]

    with opened(narrow.url, {"NO_COLOR": "1"}) as screen:
        plain = walk(screen)
        colours = {colour for run in runs_of(screen) for colour in (run.fg, run.bg) if len(colour) == 6}
        assert all(colour == colour[:2] * 3 for colour in colours), "some of it is not grey"
    with opened(narrow.url, {"COLORTERM": "truecolor"}) as screen:
        coloured = walk(screen)
    assert without_ages(plain) == without_ages(coloured)
    heads = [
        next(line for line in text if "UNKNOWN" in line or "FAILED" in line or "SUCCEEDED" in line)
        for text in plain[1:]
    ]
    assert [head.strip()[0] for head in heads] == ["?", "✗", "✓"]


def without_ages(screens: list[list[str]]) -> list[list[str]]:
    return [[re.sub(r"\d+ (?:s|min|h)\b|\d\d:\d\d:\d\d", "#", line) for line in text] for text in screens]


# --- sizes --------------------------------------------------------------------------------------------------------


def whole_page(screen: PtyScreen) -> str:
    """Every line of the page, from the top to the bottom, joined; wide characters have no blank beside them."""
    screen.press("home")
    found: list[str] = []
    last: list[str] = []
    while True:
        shown = screen.settle().splitlines()
        body = [line.rstrip("▁▂▃▄▅▆▇█ ") for line in shown[2:-1]]
        if body == last:
            return "".join("".join(found).split())
        found += [line for line in body if line not in found]
        last = body
        screen.press("down")


@pytest.mark.parametrize("size", [(80, 24), (140, 40)])
def test_nothing_of_an_operation_or_approval_is_cut(size: tuple[int, int], incident: Incident, tmp_path: Path) -> None:
    places = {
        incident.mail: (
            "mail order-4711@customers.example: Your order is late",
            "TimeoutError: smtp.customers.example",
        ),
        incident.outage[0]: (f"charge {incident.names.customer} 0 for order-1000", "$1,250.00", "refund_card"),
        incident.approvals["soon"]: (
            "rotate_the_signing_keys_of_every_warehouse_and_carrier_integration",
            "$123,456,789,012.34",
            incident.names.region,
            "quarterly-rotation-of-the-signing-keys-of-all-integrations",
        ),
        incident.approvals["big"]: ("$123,456,789,012.34", incident.names.company, "12345678901234"),
        incident.approvals["long"]: tuple(f"setting_{n:02}" for n in range(48)),
    }
    with console(incident.url, tmp_path / "home", cols=size[0], rows=size[1]) as screen:
        for (run_id, step), words in places.items():
            go(screen, f"{run_id}#{step}")
            text = whole_page(screen)
            assert "…" not in text
            for word in words:
                assert "".join(word.split()) in text, word
            screen.press("esc")
            see(screen, "safest next")


def test_what_a_row_of_the_inbox_has_no_room_for_is_in_full_below_it(incident: Incident, tmp_path: Path) -> None:
    with console(incident.url, tmp_path / "home") as screen:
        preview = "".join("".join(screen.display[screen_line(screen, "────") :]).split())
        for word in ("rotate_the_signing_keys_of_every_warehouse_and_carrier_integration", "$123,456,789,012.34"):
            assert word in preview


def screen_line(screen: PtyScreen, text: str) -> int:
    return next(n for n, line in enumerate(screen.display) if text in line)


def test_a_small_window_says_what_is_missing_and_comes_back(narrow: Incident) -> None:
    with opened(narrow.url, cols=40, rows=12) as screen:
        text = see(screen, "Walkback needs 60 columns", "here are 40 and 12")
        assert "…" not in text
        screen.resize(80, 24)
        see(screen, "safest next")
        screen.resize(40, 12)
        see(screen, "here are 40 and 12")
        screen.press("q")
        assert screen.exit_code() == 0


# --- ASCII --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "env",
    [{"WALKBACK_ASCII": "1"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}],
    ids=["asked for", "no UTF-8"],
)
def test_where_only_ascii_can_be_drawn_there_is_nothing_else(env: dict[str, str], narrow: Incident) -> None:
    with opened(narrow.url, env) as screen:
        see(screen, "need you", "safest next")
        for keys, words in (
            ("", "safest next"),
            ("?", "Help for the screen"),
            ("F", "Cancel"),
            (":runs\r", "Runs"),
            (":workers\r", "BREAKER"),
            (":log\r", "Log"),
            (f":open {narrow.mail[0]}#3\r", "UNKNOWN"),
            (f":open {narrow.approvals['long'][0]}#2\r", "AWAITING APPROVAL"),
            (f":open {narrow.failed[-1]}\r", "FAILED"),
        ):
            screen.type(keys[:1])
            screen.settle()
            screen.type(keys[1:])
            see(screen, words)
            assert {c for c in screen.settle() if not c.isascii()} == set(), words
            assert "\\x" not in screen.text
            if keys:
                screen.press("esc")
                see(screen, "safest next")
                screen.settle()


# --- mouse --------------------------------------------------------------------------------------------------------


def test_a_click_selects_and_a_second_one_opens(narrow: Incident, tmp_path: Path) -> None:
    with console(narrow.url, tmp_path / "home") as screen:
        line = screen_line(screen, "create_ticket")
        screen.click(10, line)
        screen.wait_for(lambda s: s.display[line].startswith("▌"))
        see(screen, "can undo: close_ticket")
        line = screen_line(screen, "read_order")
        screen.click(10, line)
        screen.click(10, line)
        see(screen, f"{narrow.diverged} #1", "esc back")
