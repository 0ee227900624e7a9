"""The snapshot helper and the pictures: stable, readable, and different when the screen is."""

from __future__ import annotations

import asyncio
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from tests.console import pictures
from tests.console.snapshots import WRITE, screen_text, snapshot
from tests.console.table_app import TableApp


def take(name: str, folder: Path, **more: Any) -> None:
    asyncio.run(snapshot(TableApp(), name, folder=folder, **more))


def svg_of_the_table() -> str:
    async def shot() -> str:
        app = TableApp()
        async with app.run_test(size=(60, 10)) as pilot:
            await pilot.pause()
            return app.export_screenshot(title="A table")

    return asyncio.run(shot())


async def press_down(pilot: Pilot[Any]) -> None:
    await pilot.press("down")


def test_a_snapshot_is_the_same_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WRITE, "write")
    take("table", tmp_path)
    monkeypatch.delenv(WRITE)
    take("table", tmp_path)
    written = (tmp_path / "table.txt").read_text().splitlines()
    assert written[0] == "base on #121212"
    assert [line for line in written if "寿司を注文する" in line] == [
        "│ 寿司を注文する           ¥98,000    asked                                      │"
    ]
    assert "    0-11 bold #ff005f" in written
    assert sum(line.startswith("│") for line in written) == 24


def test_what_moved_is_shown_as_a_difference_of_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WRITE, raising=False)
    with pytest.raises(AssertionError, match="there is no snapshot 'table' yet"):
        take("table", tmp_path)
    monkeypatch.setenv(WRITE, "write")
    take("table", tmp_path)
    monkeypatch.delenv(WRITE)
    with pytest.raises(AssertionError, match="table looks different") as raised:
        take("table", tmp_path, drive=press_down)
    changed = [line for line in str(raised.value).splitlines() if line[:1] in "+-" and line[:3] not in {"+++", "---"}]
    assert changed  # the two rows between which the cursor moved, and no other
    assert not any("naïve café" in line for line in changed)


def test_a_screen_below_shines_through(tmp_path: Path) -> None:
    from textual.screen import ModalScreen
    from textual.widgets import Label

    class Question(ModalScreen[None]):
        def compose(self) -> Any:
            yield Label("Are you sure?")

    async def ask() -> str:
        app = TableApp()
        async with app.run_test(size=(60, 12)) as pilot:
            await app.push_screen(Question())
            await pilot.pause()
            return screen_text(app)

    shown = asyncio.run(ask())
    assert "Are you sure?" in shown
    assert "naïve café" in shown


def test_a_picture_needs_nothing_from_the_network() -> None:
    svg = svg_of_the_table()
    assert "https://cdnjs" in svg
    local = pictures.local_font(svg)
    assert "url(" not in local.replace("url(#", "")
    assert "Fira" not in local
    assert "arial" not in local


def test_a_picture_is_as_large_as_the_svg_says() -> None:
    svg = svg_of_the_table()
    small, large = pictures.to_png(svg), pictures.to_png(svg, zoom=2)
    assert small[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", small[16:24])
    assert struct.unpack(">II", large[16:24]) == (pytest.approx(2 * width, abs=2), pytest.approx(2 * height, abs=2))
    assert width > 600


def test_a_picture_has_text_in_it() -> None:
    """A renderer that does not find its font leaves the text out and says nothing."""
    svg = svg_of_the_table()
    assert len(pictures.to_png(svg)) > 1.5 * len(pictures.to_png(blanked(svg)))


def blanked(svg: str) -> str:
    return re.sub(r"(<text[^>]*>)[^<]*", r"\1", svg)


def test_without_the_font_there_is_no_picture(tmp_path: Path) -> None:
    with pytest.raises(pictures.NoFont, match=r"no DejaVuSansMono\.ttf in .*Install DejaVu"):
        pictures.fonts((tmp_path,))
