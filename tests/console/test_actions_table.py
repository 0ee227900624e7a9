"""The table of actions holds together: keys, roles, words and commands; and no bare stored text reaches a widget."""

from __future__ import annotations

import ast
import asyncio
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import typer.main

import walkback_console
from walkback_console.actions import ADMIN, OPERATOR, ROLES, SCREENS, TABLE, VIEWER, Action, Who, on_screen, why_not
from walkback_console.app import Walkback, options_for
from walkback_console.cli.commands import app
from walkback_console.screens.base import bindings_for
from walkback_console.screens.help import HelpScreen
from walkback_console.subjects import Subject
from walkback_store import open_store

MUTATING = [action for action in TABLE if action.mutates]
PACKAGE = Path(walkback_console.__file__).parent
FIXED = {"question_mark", "f1", "colon", "slash", "n", "N", "enter"}
"""Keys that every screen has beside those of the table."""


def ids(action: Action) -> str:
    return action.id


@pytest.mark.parametrize("screen", SCREENS)
def test_no_two_actions_of_a_screen_share_a_key(screen: str) -> None:
    keys = Counter(key for action in on_screen(screen) for key in action.keys)
    assert [key for key, count in keys.items() if count > 1] == []
    assert not (keys.keys() - {"enter"}) & (FIXED - {"enter"})


@pytest.mark.parametrize("action", TABLE, ids=ids)
def test_no_action_is_only_on_a_ctrl_key(action: Action) -> None:
    assert action.keys
    assert any(not key.startswith("ctrl+") for key in action.keys)
    assert not {"ctrl+a", "ctrl+b"} & set(action.keys)


@pytest.mark.parametrize("screen", SCREENS)
def test_every_action_of_a_screen_has_its_key_there(screen: str) -> None:
    bound = {getattr(binding, "action", "") for binding in bindings_for(screen)}
    assert {f"do('{action.id}')" for action in on_screen(screen) if action.id != "open"} <= bound


# --- what changes something --------------------------------------------------------------------------------------


def member(n: int) -> dict[str, Any]:
    return {
        "run_id": f"r{n}", "step": "1", "status": "unknown", "run_status": "needs_operator", "evidence": "absent",
        "stake": "$9", "stake_value": 9.0, "description": f"pay {n}", "tool": "pay", "can_verify": 1, "touched": 3,
        "key": None, "key_until": None,
    }  # fmt: skip


class Detail:
    """As much of an operation as the words about it need."""

    operation: dict[str, Any] = member(1) | {
        "compensates": None, "compensate": "refund", "scope": None, "duplicate_suspected": 1, "service": None,
        "effect": "write", "refers_to": None, "outcome_seq": 1,
    }  # fmt: skip
    approvals = [  # noqa: RUF012
        {"n": 1, "status": "asked", "digest": "abcdef", "expires_at": None, "touched": 2, "decided_by": None}
    ]


def some_subject() -> Subject:
    run = {
        "run_id": "r1", "status": "needs_operator", "why": "unknown", "unknown_operations": 1, "pending_operations": 0,
        "awaiting_operations": 0, "resume_to": None, "status_seq": 5, "worker": None, "decision": None,
    }  # fmt: skip
    frozen = {"freeze_no": 4, "scope": "tool", "name": "pay", "until": None}
    batch = {"batch_no": 9, "status": "open", "total": 3, "released": 1}
    done = Detail.operation | {"status": "succeeded"}
    detail: Any = Detail()
    return Subject(
        at=100, run=run, detail=detail, writes=(done,), decision={"seq": 7, "action": "retry"}, freezes=(frozen,),
        members=(member(1), member(2)), batch=batch, tool="pay", agent="buyer",
    )  # fmt: skip


ANSWERS = {"reason": "because", "evidence": "receipt", "result": "7", "owner": "bob", "confirm": "2 because"}


@pytest.mark.parametrize("action", MUTATING, ids=ids)
def test_what_changes_something_needs_more_than_a_viewer(action: Action) -> None:
    assert action.role in ROLES
    assert action.role != VIEWER
    refused = why_not(action, some_subject(), Who("operator:eve", VIEWER))
    assert refused is not None
    assert action.role in refused
    assert "eve is viewer" in refused
    assert "--read-only" in str(why_not(action, some_subject(), Who("operator:ann", ADMIN), read_only=True))
    assert why_not(action, None, Who("operator:ann", ADMIN)) == "nothing is selected"


@pytest.mark.parametrize("action", MUTATING, ids=ids)
def test_what_changes_something_says_what_will_happen(action: Action) -> None:
    said = action.effects(some_subject(), {})
    assert said
    for sentence in said:
        assert len(sentence) > 10
        assert "None" not in sentence


@pytest.mark.parametrize("action", MUTATING, ids=ids)
def test_what_changes_something_has_a_command_whose_words_parse(action: Action) -> None:
    assert action.command is not None
    answers = {field.name: ANSWERS.get(field.name) or field.default(some_subject()) for field in action.fields}
    _, name, *rest = shlex.split(action.command(some_subject(), answers))
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    with command.make_context(name, rest, resilient_parsing=False) as context:  # raises on a word that it does not know
        assert context.params


@pytest.mark.parametrize("action", [a for a in TABLE if a.danger], ids=ids)
def test_what_is_dangerous_asks_why(action: Action) -> None:
    assert {field.name for field in action.fields} & {"reason", "confirm"}


@pytest.mark.parametrize("action", TABLE, ids=ids)
def test_why_not_is_said_in_words(action: Action) -> None:
    for subject in (Subject(at=0), Subject(at=0, run={**(some_subject().run or {}), "status": "succeeded"})):
        why = why_not(action, subject, Who("operator:ann", ADMIN))
        if why is not None:
            assert len(why.split()) >= 3
            assert "None" not in why
            assert not why.endswith(".")  # the screen ends the sentence
    assert action.says.endswith(".")
    assert action.label == action.label.strip()


def test_an_operator_may_not_approve() -> None:
    approve = next(action for action in TABLE if action.id == "approve")
    assert "approver" in str(why_not(approve, some_subject(), Who("operator:ann", OPERATOR)))


def test_help_and_palette_list_every_action_of_a_screen(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'walkback.db'}"
    open_store(url).close()

    async def look() -> None:
        console = Walkback(options_for(url, environ={}))
        async with console.run_test(size=(80, 24)):
            for screen in SCREENS:
                page = HelpScreen(screen)
                await console.push_screen(page)
                text = page.text_of_all()
                for action in on_screen(screen):
                    assert action.says in text, (screen, action.id)
                await console.pop_screen()
            top = console.top
            assert top is not None
            offered = {command.title for command in console.get_system_commands(top)}
            for action in on_screen(top.where):
                possible = why_not(action, top.subject(), console.who) is None
                assert action.id == "open" or (action.label.capitalize() in offered) == possible, action.id
            console.leave()

    asyncio.run(look())


# --- no bare stored text reaches a widget ------------------------------------------------------------------------

TAKES_TEXT = {"Text", "Segment", "Static", "Label"}
SAFE = {"safe", "one_mark_each", "t", "said", "safe_lines", "str", "len", "keys_line", "columns", "two_ends"}
"""Functions that make text safe, or make none that anybody else has written."""
MARK = "# safe:"
"""On the line, with the reason, where what looks bare is not."""
KNOWN = {
    ("app.py", "Text.assemble(*mode, (trail"): "each part of the trail went through safe",
    ("app.py", "Text.assemble((f'THE STORE DOES NOT"): "why went through safe two lines above",
    ("screens/base.py", "Text.assemble((prompt"): "prompts are written in the screens",
    ("screens/base.py", "Text(f'{wants}"): "numbers",
    ("screens/batch.py", "Text.assemble((f'[{label}]'"): "the name of a class, and how many",
    ("screens/run_detail.py", "Text.assemble(t(step, 'strong'), '  ', about)"): "about is a Text made by t or said",
    (
        "widgets/line_view.py",
        "Segment(' ' * GUTTER + segments[0].text",
    ): "segments come from _segments, which uses safe",
    ("widgets/line_view.py", "Text(text.plain)"): "rendered by _segments, which uses safe",
    ("widgets/frame.py", "Text.assemble((last[0]"): "a key and its label, from the table",
    ("widgets/frame.py", "Text.assemble((key, 'key')"): "a key and its label, from the table",
    ("widgets/dialog.py", "Text.assemble(field.label"): "the words of a field of the table",
}
"""What looks bare and is not: the file, how the call begins, and why."""


def offenders(source: str, name: str) -> list[str]:
    """Calls that give a widget a text that has not been through `safe`."""
    lines = source.splitlines()
    tree = ast.parse(source)
    safe_names = set(_safe_names(tree))
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not _takes_text(node.func):
            continue
        if any(
            not _is_safe(argument, safe_names) for argument in node.args[:1] if _is_assemble(node.func) is False
        ) or (_is_assemble(node.func) and any(not _is_safe(argument, safe_names) for argument in node.args)):
            around = lines[node.lineno - 1 : (node.end_lineno or node.lineno)]
            if not any(MARK in line for line in around):
                found.append(f"{name}:{node.lineno}: {ast.unparse(node)[:100]}")
    return found


def _takes_text(function: ast.expr) -> bool:
    if isinstance(function, ast.Name):
        return function.id in TAKES_TEXT
    return isinstance(function, ast.Attribute) and (function.attr == "notify" or _is_assemble(function))


def _is_assemble(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and function.attr == "assemble"


def _safe_names(tree: ast.AST) -> list[str]:
    """Names that are only ever given something safe, in the order in which they are."""
    given: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = (
                    zip(target.elts, node.value.elts, strict=False)
                    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                    else [(target, node.value)]
                )
                for name, value in pairs:
                    if isinstance(name, ast.Name):
                        given.setdefault(name.id, []).append(value)
    known: set[str] = set()
    for _ in range(3):
        known |= {name for name, values in given.items() if all(_is_safe(value, known) for value in values)}
    return sorted(known)


def _is_safe(node: ast.expr, names: set[str]) -> bool:
    match node:
        case ast.Constant():
            return True
        case ast.Name(id=name):
            return name in names or name.isupper()
        case ast.Attribute(attr=attr):
            return attr.isupper() or attr in {"label", "says", "keys"}  # of an action: the table's own words
        case ast.JoinedStr(values=parts):
            return all(
                not isinstance(part, ast.FormattedValue) or _is_safe(part.value, names) or _is_number(part)
                for part in parts
            )
        case ast.BinOp(left=left, right=right):
            return _is_safe(left, names) and _is_safe(right, names)
        case ast.BoolOp(values=values):
            return all(_is_safe(value, names) for value in values)
        case ast.IfExp(body=body, orelse=orelse):
            return _is_safe(body, names) and _is_safe(orelse, names)
        case ast.Tuple(elts=[text, *_]):
            return _is_safe(text, names)
        case ast.Starred(value=value):
            return _is_safe(value, names)
        case ast.Subscript(value=ast.Name(id=name)):
            return name.isupper() or name in names
        case ast.Call(func=ast.Name(id=name)):
            return name in SAFE or name in TAKES_TEXT
        case ast.Call(func=ast.Attribute(attr="join"), args=[ast.GeneratorExp(elt=elt)]):
            return _is_safe(elt, names)
        case ast.Call(func=ast.Attribute(attr="assemble")):
            return True  # looked at by itself
        case ast.Call(func=ast.Attribute(value=value, attr="replace")):
            return _is_safe(value, names)
    return False


def _is_number(part: ast.FormattedValue) -> bool:
    spec = part.format_spec
    return isinstance(spec, ast.JoinedStr) and any(
        isinstance(v, ast.Constant) and str(v.value).endswith((",", "d", "f")) for v in spec.values
    )


def test_no_bare_text_reaches_a_widget() -> None:
    files = [PACKAGE / "app.py", *(PACKAGE / "screens").glob("*.py"), *(PACKAGE / "widgets").glob("*.py")]
    assert len(files) > 10
    found = [bad for path in files for bad in offenders(path.read_text(), str(path.relative_to(PACKAGE)))]
    excused = {known: [bad for bad in found if _is_known(bad, *known)] for known in KNOWN}
    assert [bad for bad in found if not any(bad in bads for bads in excused.values())] == []
    assert [known for known, bads in excused.items() if not bads] == []  # no longer needed


def _is_known(bad: str, file: str, beginning: str) -> bool:
    name, _, call = bad.split(":", 2)
    return name == file and call.strip().startswith(beginning)


@pytest.mark.parametrize(
    "line",
    [
        'Text(row["description"])',
        "Text(f\"run {row['run_id']}\")",
        'Text.assemble("a", (row["tool"], "bad"))',
        "Static(error)",
        "self.app.notify(str_of(row))",
        'Segment("  " + row["stake"], style)',
        'Label(", ".join(row["name"] for row in rows))',
    ],
)
def test_a_bare_text_is_found(line: str) -> None:
    assert offenders(f"def show(self, row, rows, error, style):\n    {line}\n", "planted.py")


@pytest.mark.parametrize(
    "line",
    ['Text(safe(row["tool"]))', 'Text.assemble("a", (safe(row["tool"]), "bad"))', 'Text(f"{safe(x)}, {n:,} more")',
     'Static("Inbox")', 'Text(plain)  # safe: made of numbers'],
)  # fmt: skip
def test_what_is_safe_is_let_through(line: str) -> None:
    assert offenders(f"def show(self, row, x, n, plain):\n    {line}\n", "planted.py") == []
