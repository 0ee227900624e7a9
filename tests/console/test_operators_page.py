"""The page for operators says what is true: its keys, its commands, and a section for every kind of trouble."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from textual.binding import Binding

from tests.test_docs import ROOT
from walkback_console.actions import TABLE
from walkback_console.cli.commands import app
from walkback_console.screens.base import KEY_NAMES, bindings_for
from walkback_console.screens.batch import BatchScreen
from walkback_console.screens.run import RunScreen
from walkback_console.widgets.page import Page
from walkback_store.inbox import KINDS, SOURCES, STUCK

PAGE = (ROOT / "docs" / "operators.md").read_text()
PARTS = ("The world", "Look", "Press", "Safe", "Not safe", "Then", "Hand over")
WORDS = {"enter", "esc", "tab", "space", "shift+tab"}
IN_DIALOGS = {"shift+tab"}
SCREENS: dict[str, list[Any]] = {
    "everywhere": bindings_for(""), "batch": BatchScreen.BINDINGS, "run": RunScreen.BINDINGS, "approval": Page.BINDINGS,
}  # fmt: skip
NAMES = {"esc": "escape", "?": "question_mark", "/": "slash", ":": "colon"}


def part(heading: str, *, level: int = 2) -> str:
    """What stands below a heading, up to the next that is not below it."""
    found = re.search(rf"^#{{{level}}} {re.escape(heading)}\n(.*?)(?=^#{{2,{level}}} |\Z)", PAGE, re.M | re.S)
    assert found is not None, f"docs/operators.md has no section {heading!r}"
    return found[1]


def table(heading: str) -> list[tuple[str, str]]:
    return re.findall(r"^\| `([^`]+)` \| ([^|]+) \|", part(heading, level=3), re.MULTILINE)


def command_lines() -> Iterator[str]:
    """Of every block and of every line of prose; a comment after a command is none of it."""
    for block in re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        yield from (re.sub(r"\s+# .*", "", line) for line in block.splitlines())
    prose = re.sub(r"^```.*?^```", "", PAGE, flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`(walkback(?: [^`]+)?)`", prose)


# --- keys --------------------------------------------------------------------------------------------------------


def test_every_key_in_the_table_is_in_the_table_of_actions_with_that_label() -> None:
    known = {(KEY_NAMES.get(key, key), action.label) for action in TABLE for key in action.keys}
    named = table("Keys")
    assert len(named) > 20
    assert [pair for pair in named if pair not in known] == []


def test_every_key_that_changes_something_is_in_the_table() -> None:
    named = set(table("Keys"))
    assert [a.id for a in TABLE if a.mutates and (KEY_NAMES.get(a.keys[0], a.keys[0]), a.label) not in named] == []


def test_every_key_of_a_screen_is_bound_there() -> None:
    named = table("Keys of a screen")
    assert {where for _, where in named} == SCREENS.keys()
    for key, where in named:
        bound = {k for b in SCREENS[where] if isinstance(b, Binding) for k in b.key.split(",")}
        assert NAMES.get(key, key) in bound, (key, where)


def test_every_key_that_the_text_names_is_in_one_of_the_tables() -> None:
    known = {key for key, _ in (*table("Keys"), *table("Keys of a screen"))} | IN_DIALOGS
    prose = re.sub(r"^```.*?^```", "", PAGE, flags=re.MULTILINE | re.DOTALL)
    named = {code for code in re.findall(r"`([^`\n]+)`", prose) if len(code) == 1 or code in WORDS}
    assert named - known - {"9"} == set()  # a number that is typed


# --- commands ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", sorted(set(command_lines())))
def test_every_command_line_can_be_given(line: str) -> None:
    group: Any = typer.main.get_command(app)
    program, *args = shlex.split(line)
    assert program == "walkback"
    context = group.make_context("walkback", list(args), resilient_parsing=not args)
    if rest := [*context._protected_args, *context.args]:
        name, command, given = group.resolve_command(context, rest)
        command.make_context(name, given, parent=context)


# --- sections ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_trouble_has_a_section_with_all_its_parts(kind: str) -> None:
    said = part(f"`{kind}`")
    parts = [name for name in PARTS if not (kind == STUCK and name == "Then")]  # of each reason
    assert [name for name in parts if f"**{name}**" not in said] == []


def test_every_reason_to_be_stuck_has_a_section() -> None:
    reasons = {str(source.columns["why"].value) for source in SOURCES if source.kinds == (STUCK,)}
    assert len(reasons) == 4
    assert set(re.findall(r"^### `(\w+)`$", part(f"`{STUCK}`"), re.MULTILINE)) == reasons


@pytest.mark.parametrize("block", re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
def test_every_picture_of_a_screen_fits_in_80_columns(block: str) -> None:
    assert max(len(line) for line in block.splitlines()) <= 80
