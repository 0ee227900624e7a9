"""Who works, what the next person has to know, signals, what a shell is offered, and what doctor says of a terminal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from tests.console.terminal import Command, command, environment, terminal
from tests.store import driver
from tests.support.people import open_store
from walkback_console.cli.commands import app
from walkback_console.cli.terminal import Terminal, judge
from walkback_store.machine.people import AddNote, DecideRetry
from walkback_store.machine.runs import ParkRun
from walkback_store.machine.store_wide import Freeze, ServiceFailed
from walkback_store.words import FreezeScope


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture
def busy(store_url: str) -> str:
    """A worker that holds a run; an unknown that somebody owns, a freeze, an open breaker, a decision that waits."""
    with open_store(store_url) as store:
        driver.held(store, "going-1", worker="w1")
        driver.park_unknown(driver.held(store, "lost-2", worker="w2"), "1", description="pay ann", stake="$9")
        driver.park_unknown(driver.held(store, "lost-3", worker="w3"), "1", description="pay bob")
        store.do(AddNote(actor=driver.ANN, run_id="lost-2", reason="calling the bank", owner=driver.ANN))
        store.do(DecideRetry(actor=driver.BOB, run_id="lost-3", step="1", reason="not there", regret=driver.MINUTE))
        store.do(Freeze(actor=driver.ANN, scope=FreezeScope.TOOL, name="pay", reason="wrong prices"))
        store.do(
            ServiceFailed(actor="worker:w1", service="bank", reason="Timeout", threshold=1, cooldown=10 * driver.MINUTE)
        )
    return store_url


# --- workers and handover ----------------------------------------------------------------------------------------


def test_workers_are_listed_with_what_they_hold_and_what_holds_them_up(walkback: Command, busy: str) -> None:
    found = walkback("workers", "--store", busy, "--json").json
    assert {(w["worker"], w["status"], w["held"]) for w in found["workers"]} == {
        ("w1", "alive", 1), ("w2", "alive", 0), ("w3", "alive", 0),
    }  # fmt: skip
    assert found["workers"][0]["agents"] == {"a": ["1"]}
    assert [f["name"] for f in found["freezes"]] == ["pay"]
    assert [f["name"] for f in found["breakers"]] == ["bank"]
    said = words(walkback("workers", "--store", busy).out)
    for expected in ("3 workers alive.", "FROZEN tool pay", "BREAKER OPEN service bank", "here pid 1, a v1"):
        assert expected in said


def test_without_a_worker_it_says_that_nothing_moves(walkback: Command, store_url: str) -> None:
    open_store(store_url).close()
    said = walkback("workers", "--store", store_url).out
    assert "No worker is alive: no run moves." in said
    assert "walkback work" in said


def test_a_handover_has_what_people_did_what_is_open_and_whose_it_is(walkback: Command, busy: str) -> None:
    said = walkback("handover", "--store", busy, "--since", "1h").out
    assert "frozen: tool pay, by operator:ann" in said
    assert "breaker open: service bank" in said
    assert "- retry lost-3 #1, by operator:bob, due in " in said
    assert "to take it back: walkback undo lost-3" in said
    assert "- unknown, pay ann, $9, lost-2 #1, owner operator:ann" in said
    assert "operator:ann took lost-2: calling the bank" in said
    assert "operator:bob decided to try again: lost-3 #1: not there" in said
    assert "operator:ann froze tool pay: wrong prices" in said
    found = walkback("handover", "--store", busy, "--json").json
    assert [e["did"] for e in found["people"]] == [
        "made everyone else admin", "took", "decided to try again:", "froze tool pay",
    ]  # fmt: skip
    assert [(d["run"], d["step"], d["action"], d["by"]) for d in found["waiting"]] == [
        ("lost-3", "1", "retry", "operator:bob")
    ]
    assert [(i["run"], i["owner"]) for i in found["open"]] == [("lost-2", "operator:ann")]


def test_a_handover_looks_back_as_far_as_it_is_asked(walkback: Command, busy: str) -> None:
    assert walkback("handover", "--since", "0s", "--store", busy, "--json").json["people"] == []


# --- signals -----------------------------------------------------------------------------------------------------


def test_a_signal_wakes_who_waits_for_it_and_the_same_one_counts_once(walkback: Command, store_url: str) -> None:
    with open_store(store_url) as store:
        h = driver.held(store, "waits-1")
        store.do(ParkRun(**h.by, waits_for="signal:paid"))
    args = ("--store", store_url, "signal", "waits", "paid", "--data", '{"cents": 5}', "--id", "mail-7")
    first = walkback(*args, "--json").json
    assert (first["run"], first["new"], first["woke"], first["status"]) == ("waits-1", True, True, "running")
    again = walkback(*args, "--json").json
    assert (again["new"], again["woke"], again["event"]) == (False, False, None)
    assert "counts once" in words(walkback(*args).out)
    with open_store(store_url) as store:
        assert store.events("waits-1", after=first["event"] - 1)[0].data["payload"] == {"cents": 5}
        assert len(store.waiting_signals("waits-1", "paid")) == 1
    kept = walkback("signal", "waits-1", "later", "--store", store_url)
    assert "later is kept for waits-1" in words(kept.out)


def test_what_is_no_json_is_a_mistake_of_the_command_line(walkback: Command, busy: str) -> None:
    done = walkback("signal", "going-1", "paid", "--data", "{nope", "--store", busy)
    assert done.code == 2
    assert "--data is not JSON" in done.err


# --- every command -----------------------------------------------------------------------------------------------


def arguments_of(found: Any) -> list[str]:
    """Something for each argument and option that a command cannot do without."""
    given: list[str] = []
    for parameter in found.params:
        if parameter.required:
            option = max(parameter.opts, key=len)
            value = {"number": "1", "role": "viewer", "older_than": "1d"}.get(parameter.name, "x")
            given += [value] if parameter.param_type_name == "argument" else [option, value]
    return given + (["--verify"] if found.name == "resolve" else [])


COMMANDS: dict[str, Any] = dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"work", "open", "doctor"}))
def test_every_command_takes_the_store_before_and_after_its_name(
    walkback: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    there, wrong = str(tmp_path / "there.db"), str(tmp_path / "wrong.db")
    monkeypatch.setenv("WALKBACK_STORE", wrong)
    given = arguments_of(COMMANDS[name])
    for args in (("--store", there, name, *given), (name, *given, "--store", there)):
        done = walkback(*args)
        assert done.code == 3, done.err
        assert "there is no store at" in done.err
        assert "there.db" in done.err
        assert "wrong.db" not in done.err


def test_the_others_take_it_after_their_name_too() -> None:
    for name in ("work", "open", "doctor"):
        assert "--store" in {option for parameter in COMMANDS[name].params for option in parameter.opts}


LOADED = """
import sys
from walkback_console.cli import main
try:
    main(sys.argv[1:])
finally:
    heavy = ("pydantic", "rich", "textual", "deepdiff", "alembic")
    print(*(name for name in heavy if name in sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize("args", [("runs",), ("inbox",), ("events", "lost-2"), ("runs", "--agent", "a")], ids="-".join)
def test_json_waits_for_nothing_that_it_does_not_need(busy: str, args: tuple[str, ...]) -> None:
    python = [sys.executable, "-c", LOADED, *args, "--json", "--store", busy]
    done = subprocess.run(python, capture_output=True, text=True, env=environment(), timeout=60, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "")


def test_numbers_and_words_are_still_checked(walkback: Command, busy: str) -> None:
    for args in (("--limit", "0"), ("--limit", "many"), ("--status", "odd"), ("--since", "soon")):
        assert walkback("runs", *args, "--store", busy).code == 2, args
    assert len(walkback("runs", "--limit", "1", "--store", busy, "--json").json["runs"]) == 1
    found = walkback("runs", "--status", "needs_operator", "--store", busy, "--json").json["runs"]
    assert {run["id"] for run in found} == {"lost-2"}


# --- completion --------------------------------------------------------------------------------------------------


def complete(line: str, **env: str) -> list[str]:
    done = subprocess.run(
        command(),
        env=environment(
            _WALKBACK_COMPLETE="complete_bash",
            COMP_WORDS=line,
            COMP_CWORD=str(len(line.split(" ")) - 1),
            _TYPER_COMPLETE_TESTING="True",
            **env,
        ),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_run_ids_complete_from_the_store(busy: str) -> None:
    assert sorted(complete("walkback show lo", WALKBACK_STORE=busy)) == ["lost-2", "lost-3"]
    assert sorted(complete(f"walkback show --store {busy} lo")) == ["lost-2", "lost-3"]
    assert sorted(complete(f"walkback --store {busy} audit lo")) == ["lost-2", "lost-3"]


def test_statuses_complete() -> None:
    assert complete("walkback runs --status comp") == ["compensating", "compensated"]


def test_an_id_that_means_something_to_a_shell_is_not_offered(tmp_path: Path) -> None:
    url = str(tmp_path / "walkback.db")
    with open_store(url) as store:
        for run_id in ("good-1", "go$(reboot)", "go `x`", "go*"):
            driver.start(store, run_id)
    assert complete("walkback show go", WALKBACK_STORE=url) == ["good-1"]


def test_where_there_is_no_store_nothing_is_offered_and_nothing_is_said(tmp_path: Path) -> None:
    assert complete("walkback show lo", WALKBACK_STORE=str(tmp_path / "none.db")) == []
    assert complete("walkback show lo", WALKBACK_STORE="postgresql://127.0.0.1:1/nothing") == []
    assert list(tmp_path.iterdir()) == []


# --- the terminal, as doctor sees it -----------------------------------------------------------------------------


def verdicts(terminal: Terminal) -> dict[str, str]:
    return {finding.check: finding.verdict for finding in judge(terminal)}


GOOD = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}


def test_a_terminal_with_room_colours_and_utf8_is_fine() -> None:
    found = verdicts(Terminal(True, (80, 24), "utf-8", GOOD))
    assert found == {"terminal": "ok", "size": "ok", "colours": "ok", "characters": "ok"}


@pytest.mark.parametrize(
    ("terminal", "check"),
    [
        (Terminal(True, (79, 24), "utf-8", GOOD), "size"),
        (Terminal(True, (80, 23), "utf-8", GOOD), "size"),
        (Terminal(True, (80, 24), "ascii", GOOD), "characters"),
        (Terminal(True, (80, 24), "utf-8", {"TERM": "dumb"}), "terminal"),
        (Terminal(True, (80, 24), "utf-8", {"TERM": "vt100"}), "colours"),
        (Terminal(True, (80, 24), "utf-8", GOOD | {"STY": "1"}), "clipboard"),
    ],
)
def test_what_a_terminal_lacks_is_named_with_what_to_do(terminal: Terminal, check: str) -> None:
    (found,) = (finding for finding in judge(terminal) if finding.check == check)
    assert found.verdict == "look"
    assert found.do


def test_no_colour_is_a_wish_and_not_a_lack() -> None:
    assert verdicts(Terminal(True, (80, 24), "utf-8", GOOD | {"NO_COLOR": "1"}))["colours"] == "ok"


def test_tmux_is_told_how_the_clipboard_is_reached() -> None:
    (found,) = (f for f in judge(Terminal(True, (80, 24), "utf-8", GOOD | {"TMUX": "/x"})) if f.check == "clipboard")
    assert "set-clipboard" in found.do


def test_doctor_in_a_terminal_sees_its_size(busy: str) -> None:
    with terminal(command("doctor", "--json", "--store", busy), TERM="xterm-256color") as screen:
        checks = {c["check"]: c for c in json.loads(screen.rest())["checks"]}
    assert checks["size"]["verdict"] == "look"  # a pty that nobody sized has no columns at all
    assert checks["permissions"]["verdict"] == "ok"
