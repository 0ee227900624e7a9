"""The commands that decide: what they do to a real store, what they ask, what they say, and what they refuse."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer.main

import walkback_store
from tests.console.terminal import Command, command, environment, terminal
from tests.store import driver
from tests.support.people import open_store
from walkback_console.actions import TABLE
from walkback_console.cli.commands import app
from walkback_console.whoami import operator_of
from walkback_store.machine.operations import AppendLateEvidence, Settle
from walkback_store.machine.people import Approve, Refuse
from walkback_store.machine.roles import GrantRole
from walkback_store.machine.runs import NeedOperator
from walkback_store.words import OperationStatus, Role, Why


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture
def filled(store_url: str) -> str:
    """A run that did three things, one with an unknown, one that waits for an approval, one that goes on."""
    with open_store(store_url) as store:
        done = driver.held(store, "done-1", worker="w1")
        driver.write(done, "1", description="pay the printer", compensate="refund", scope="billing")
        driver.write(done, "2", description="pay the painter", compensate="refund")
        driver.write(done, "3", tool="mail", description="mail ann")
        driver.finish(done)
        lost = driver.held(store, "lost-2", worker="w2")
        driver.park_unknown(lost, "1", description="pay the plumber", stake="$90", can_verify=True)
        asks = driver.held(store, "asks-3", worker="w3")
        driver.ask(asks, "1", park=True, description="pay the builder", stake="$9,000")
        driver.held(store, "goes-4", worker="w4")
    return store_url


def me(url: str) -> str:
    with walkback_store.open_store(url) as store:
        return operator_of(store)


def run_of(url: str, run_id: str) -> dict[str, Any]:
    with open_store(url) as store:
        return store.run(run_id)


def op_of(url: str, run_id: str, step: str = "1") -> dict[str, Any]:
    with open_store(url) as store:
        return store.operation(run_id, step).operation


def last_event(url: str, run_id: str) -> Any:
    with open_store(url) as store:
        return store.events(run_id, before=1 << 40, limit=1)[-1]


# --- approvals ---------------------------------------------------------------------------------------------------


def test_an_approval_waits_ten_seconds_and_can_be_taken_back(walkback: Command, filled: str) -> None:
    given = walkback("approve", "asks", "--yes", "--store", filled, "--json").json
    assert (given["action"], given["run"], given["step"], given["by"]) == ("approve", "asks-3", "1", me(filled))
    assert given["take_back"] == "walkback undo asks-3"
    assert given["not_before"] > given["at"]
    with open_store(filled) as store:
        (waits,) = store.waiting_decisions()
        assert waits["not_before"] - waits["decided_at"] == 10 * driver.SECOND
        assert store.operation("asks-3", "1").approvals[0]["status"] == "given"
    back = walkback("undo", "asks", "--store", filled, "--json").json
    assert (back["action"], back["step"], back["take_back"]) == ("undo", "1", None)
    with open_store(filled) as store:
        assert store.operation("asks-3", "1").approvals[0]["status"] == "asked"
    assert "nothing that was decided about it waits any more" in walkback("undo", "asks", "--store", filled).err


def test_approving_shows_everything_first_and_says_how_to_take_it_back(walkback: Command, filled: str) -> None:
    done = walkback("approve", "asks-3#1", "--yes", "--store", filled)
    for said in ("pay the builder", "$9,000", "big payments", 'step = "1"', "digest", driver.DIGEST, "if refused"):
        assert said in words(done.err), said
    assert "`walkback undo asks-3` takes it back" in words(done.err)
    assert "u takes it back" not in done.err
    assert "To take it back until then: walkback undo asks-3" in words(done.out)


def test_an_approval_of_something_else_than_was_seen_is_refused(walkback: Command, filled: str) -> None:
    wrong = walkback("approve", "asks", "--digest", "abc", "--yes", "--store", filled)
    assert wrong.code == 1
    assert "what is asked is not what you saw" in wrong.err
    assert op_of(filled, "asks-3")["status"] == "awaiting_approval"
    assert walkback("approve", "asks", "--digest", "ddd", "--yes", "--store", filled).code == 0


def test_denying_needs_a_reason_and_the_agent_gets_it(walkback: Command, filled: str) -> None:
    assert walkback("deny", "asks", "--yes", "--store", filled).code == 2
    assert walkback("deny", "asks", "--reason", " ", "--yes", "--store", filled).code == 2
    assert walkback("deny", "asks", "--reason", "too much", "--yes", "--store", filled).code == 0
    operation = op_of(filled, "asks-3")
    assert (operation["status"], operation["error"]) == ("denied", "too much")


@pytest.mark.parametrize("first", ["approves", "refuses"])
def test_of_two_operators_on_one_approval_one_wins_and_the_other_is_told_who(filled: str, first: str) -> None:
    place: dict[str, Any] = {"run_id": "asks-3", "step": "1"}
    with terminal(command("approve", "asks-3", "--store", filled), TERM="dumb") as screen:
        screen.until(b"[y/N]")  # the second operator has seen everything, and thinks
        with open_store(filled) as store:
            if first == "approves":
                store.do(Approve(actor=driver.BOB, **place, digest=driver.DIGEST, reason="I know them"))
            else:
                store.do(Refuse(actor=driver.BOB, **place, reason="I know them"))
        screen.type("y\n")
        said = words(screen.rest().decode())
        assert screen.process.wait() == 1
    assert "operator:bob decided it: I know them" in said
    assert "Traceback" not in said
    with open_store(filled) as store:
        (approval,) = store.operation("asks-3", "1").approvals
        assert approval["decided_by"] == driver.BOB


def test_an_operator_who_comes_later_is_told_who_decided(walkback: Command, filled: str) -> None:
    with open_store(filled) as store:
        store.do(Approve(actor=driver.BOB, run_id="asks-3", step="1", digest=driver.DIGEST))
    late = walkback("deny", "asks-3#1", "--reason", "no", "--yes", "--store", filled)
    assert late.code == 1
    assert "it is given by operator:bob already" in words(late.err)


# --- unknowns ----------------------------------------------------------------------------------------------------


def test_it_happened_needs_evidence_and_gives_the_run_its_result(walkback: Command, filled: str) -> None:
    args = ("resolve", "lost", "--happened", "--reason", "looked", "--yes", "--store", filled)
    assert "needs --evidence" in walkback(*args).err
    assert walkback(*args, "--evidence", "receipt 7", "--result", "{nope").code == 2
    assert op_of(filled, "lost-2")["status"] == "unknown"
    done = walkback(*args, "--evidence", "receipt 7", "--result", '{"id": 7}', "--json").json
    assert (done["action"], done["status"], done["not_before"]) == ("happened", "running", None)
    assert op_of(filled, "lost-2")["status"] == "succeeded"
    event = last_event(filled, "lost-2")
    assert event.seq == done["event"]
    assert (event.data["result"], event.data["evidence"]) == ({"id": 7}, "receipt 7")


def test_it_did_not_happen_fails_the_call(walkback: Command, filled: str) -> None:
    assert walkback("resolve", "lost-2", "--absent", "--reason", "asked them", "--yes", "--store", filled).code == 0
    assert op_of(filled, "lost-2")["status"] == "failed"


def test_verify_again_asks_nobody_and_needs_no_reason(walkback: Command, filled: str) -> None:
    assert walkback("resolve", "lost-2", "--verify", "--store", filled).code == 0
    assert op_of(filled, "lost-2")["verify_requested"] == 1


@pytest.mark.parametrize("args", [("retry", "lost-2"), ("resolve", "lost-2", "--retry")], ids=lambda args: args[0])
def test_a_retry_waits_and_can_be_taken_back(walkback: Command, filled: str, args: tuple[str, ...]) -> None:
    done = walkback(*args, "--reason", "not there", "--yes", "--store", filled, "--json").json
    assert (done["action"], done["status"], done["take_back"]) == ("retry", "waiting", "walkback undo lost-2")
    walkback("undo", "lost-2", "--store", filled)
    assert run_of(filled, "lost-2")["status"] == "needs_operator"


def test_a_suspected_duplicate_is_dismissed(walkback: Command, filled: str) -> None:
    with open_store(filled) as store:
        data = {"output": "twice?"}
        store.do(AppendLateEvidence(actor="worker:w1", run_id="done-1", step="2", data=data, duplicate_suspected=True))
    done = walkback("resolve", "done-1", "--no-duplicate", "--reason", "one mail only", "--yes", "--store", filled)
    assert done.code == 0, done.err
    assert op_of(filled, "done-1", "2")["duplicate_suspected"] == 0


def test_an_unknown_is_handed_over_with_a_note(walkback: Command, filled: str) -> None:
    done = walkback("resolve", "lost-2", "--hand-over", "bob", "--reason", "call the bank at 9", "--store", filled)
    assert done.code == 0, done.err
    assert run_of(filled, "lost-2")["owner"] == "bob"
    assert walkback("own", "lost-2", "--store", filled).code == 0
    assert run_of(filled, "lost-2")["owner"] == me(filled).removeprefix("operator:")
    assert walkback("own", "lost-2", "--to", "bob", "--store", filled).code == 2  # without a note


def test_resolving_says_one_thing(walkback: Command, filled: str) -> None:
    for args in ((), ("--verify", "--absent"), ("--absent", "--evidence", "x")):
        done = walkback("resolve", "lost-2", *args, "--reason", "x", "--yes", "--store", filled)
        assert done.code == 2, args
    assert op_of(filled, "lost-2")["status"] == "unknown"


def test_which_step_is_meant_has_to_be_said_when_there_are_two(walkback: Command, store_url: str) -> None:
    with open_store(store_url) as store:
        two = driver.held(store, "two", worker="w9")
        driver.lose_track(two, "1")
        driver.intend(two, "2")
        store.do(Settle(**two.by, step="2", outcome=OperationStatus.UNKNOWN, error_class="Timeout"))
        store.do(NeedOperator(**two.by, why=Why.UNKNOWN, detail="no answer", step="1"))
    args = ("--absent", "--reason", "x", "--yes", "--store", store_url)
    several = walkback("resolve", "two", *args)
    assert several.code == 2
    assert "name one of two#1, two#2" in several.err
    assert walkback("resolve", "tw#2", *args).code == 0
    assert walkback("resolve", "two", *args).code == 0  # one is left
    none = walkback("resolve", "two", *args)
    assert none.code == 1
    assert "no operation of two is unknown" in none.err


# --- many at once ------------------------------------------------------------------------------------------------


@pytest.fixture
def outage(store_url: str) -> str:
    """Three unknowns of one outage, of which two can be verified."""
    with open_store(store_url) as store:
        for i in (1, 2, 3):
            call: dict[str, Any] = {"can_verify": i < 3, "stake": f"${i}", "stake_value": float(i)}
            driver.park_unknown(driver.held(store, f"lost-{i}", worker=f"w{i}"), "1", **call)
    return store_url


LOST = ("lost-1#1", "lost-2", "lost-3#1")


def test_a_retry_of_many_is_a_batch_that_can_be_watched_and_stopped(walkback: Command, outage: str) -> None:
    why = ("--reason", "the bank lost them", "--yes", "--store", outage)
    opened = walkback("retry", *LOST, *why)
    assert opened.code == 0, opened.err
    assert "3 operations, $6 at stake" in words(opened.err)
    number = walkback("workers", "--store", outage, "--json").json["batches"][0]["number"]
    assert f"walkback batch {number} --stop" in words(opened.out)
    found = walkback("batch", str(number), "--store", outage, "--json").json
    assert [(m["run"], m["step"], m["status"]) for m in found["members"]] == [
        ("lost-1", "1", "unknown"), ("lost-2", "1", "unknown"), ("lost-3", "1", "unknown"),
    ]  # fmt: skip
    assert (found["status"], found["total"], found["released"]) == ("open", 3, 0)
    assert "lost-2#1" in walkback("batch", str(number), "--store", outage).out
    assert walkback("batch", str(number), "--stop", "--yes", "--store", outage).code == 2  # without a reason
    stopped = walkback("batch", str(number), "--stop", *why, "--json").json
    assert (stopped["action"], stopped["what"]) == ("stop_batch", f"batch {number}")
    assert walkback("batch", str(number), "--store", outage, "--json").json["status"] == "stopped"
    assert walkback("batch", str(number), "--stop", *why).code == 1


def test_many_are_verified_or_failed_or_handed_over_each_by_itself(walkback: Command, outage: str) -> None:
    verified = walkback("resolve", *LOST, "--verify", "--yes", "--store", outage, "--json").json
    assert [d["run"] for d in verified["done"]] == ["lost-1", "lost-2"]  # the third has no verify
    assert verified["refused"] == []
    assert op_of(outage, "lost-1")["verify_requested"] == 1
    why = ("--reason", "not there", "--yes", "--store", outage)
    handed = walkback("own", "lost-3", "lost-3#1", "--to", "bob", *why, "--json").json
    assert [d["run"] for d in handed["done"]] == ["lost-3"]
    assert run_of(outage, "lost-3")["owner"] == "bob"
    assert walkback("resolve", "lost-3#1", "lost-3", "--absent", *why).code == 0
    assert op_of(outage, "lost-3")["status"] == "failed"


def test_that_many_happened_is_said_one_at_a_time(walkback: Command, outage: str) -> None:
    args = ("--happened", "--evidence", "x", "--reason", "x", "--yes", "--store", outage)
    done = walkback("resolve", *LOST, *args)
    assert done.code == 2
    assert "one operation at a time" in done.err


def test_the_number_has_to_be_typed(outage: str) -> None:
    args = command("resolve", *LOST, "--absent", "--reason", "x", "--store", outage)
    with terminal(args, TERM="dumb") as screen:
        screen.until(b"Type 3 to do it")
        screen.type("y\n")
        assert b"nothing was changed" in screen.rest()
        assert screen.process.wait() == 1
    with terminal(args, TERM="dumb") as screen:
        screen.until(b"Type 3 to do it")
        screen.type("3\n")
        assert b"3 operations." in screen.rest()
        assert screen.process.wait() == 0
    assert [op_of(outage, f"lost-{i}")["status"] for i in (1, 2, 3)] == ["failed"] * 3


# --- undoing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "steps", "scope"),
    [
        ((), ["2", "1"], "run"),
        (("--step", "1"), ["1"], "operation:1"),
        (("--after", "1"), ["2"], "after:1"),
        (("--transaction", "billing"), ["1"], "transaction:billing"),
    ],
    ids=lambda value: str(value),
)
def test_undoing_says_what_in_which_order_and_waits(
    walkback: Command, filled: str, args: tuple[str, ...], steps: list[str], scope: str
) -> None:
    done = walkback("compensate", "done", *args, "--reason", "wrong", "--yes", "--store", filled)
    assert done.code == 0, done.err
    said = words(done.err)
    places = [said.index(f"step {step}: refund undoes") for step in steps]
    assert places == sorted(places)
    event = last_event(filled, "done-1")
    assert (event.data["scope"], event.data["steps"]) == (scope, steps)
    assert "walkback undo done-1" in done.out


def test_a_place_names_the_step_to_undo_and_two_scopes_are_a_mistake(walkback: Command, filled: str) -> None:
    two = walkback("compensate", "done", "--step", "1", "--after", "1", "--reason", "x", "--yes", "--store", filled)
    assert two.code == 2
    done = walkback("compensate", "done-1#2", "--reason", "x", "--yes", "--store", filled, "--json").json
    assert done["what"] == "step 2"


def test_what_has_no_compensation_cannot_be_undone_and_says_so(walkback: Command, filled: str) -> None:
    done = walkback("compensate", "done-1#3", "--reason", "x", "--yes", "--store", filled)
    assert done.code == 2
    assert "mail at step 3 has no compensation" in done.err


# --- runs, freezes, words ----------------------------------------------------------------------------------------


def test_a_run_is_paused_resumed_and_cancelled(walkback: Command, filled: str) -> None:
    def do(*args: str) -> Any:
        return walkback(*args, "--yes", "--json", "--store", filled).json

    assert do("pause", "lost-2")["status"] == "paused"
    assert do("resume", "lost-2", "--reason", "go")["status"] == "needs_operator"
    assert do("cancel", "goes-4", "--reason", "enough")["status"] == "running"  # at the next boundary
    assert run_of(filled, "goes-4")["cancel_requested"] == 1
    refused = walkback("cancel", "done-1", "--reason", "x", "--yes", "--store", filled)
    assert refused.code == 1
    assert "the run is succeeded" in refused.err


def test_a_freeze_is_set_named_twice_refused_and_lifted(walkback: Command, filled: str) -> None:
    args = ("--reason", "wrong prices", "--yes", "--store", filled)
    frozen = walkback("freeze", "tool", "pay", *args, "--json").json
    assert (frozen["action"], frozen["run"], frozen["what"]) == ("freeze", None, "tool pay")
    again = walkback("freeze", "tool", "pay", *args)
    assert again.code == 1
    with open_store(filled) as store:
        assert [(f["scope"], f["name"]) for f in store.freezes()] == [("tool", "pay")]
        (number,) = [f["freeze_no"] for f in store.freezes()]
    other = walkback("unfreeze", "tool", "mail", *args)
    assert other.code == 1
    assert "tool mail is not frozen; tool pay is" in other.err
    assert walkback("unfreeze", str(number), *args).code == 0
    assert walkback("freeze", "everything", *args).code == 0
    assert walkback("unfreeze", "everything", *args).code == 0
    assert walkback("freeze", "the", "world", *args).code == 2


def test_a_note_is_kept_with_the_run_and_the_step(walkback: Command, filled: str) -> None:
    assert walkback("note", "lost-2#1", "--reason", "calling them", "--store", filled).code == 0
    event = last_event(filled, "lost-2")
    assert (event.step, event.data["action"], event.data["reason"]) == ("1", "note", "calling them")


# --- who may -----------------------------------------------------------------------------------------------------


def test_roles_say_who_you_are_and_who_may_do_what(walkback: Command, filled: str) -> None:
    found = walkback("roles", "--store", filled, "--json").json
    assert found["you"] == {"person": me(filled), "role": "admin"}
    granted = walkback("grant", "bob", "approver", "--reason", "new here", "--yes", "--store", filled, "--json").json
    assert (granted["person"], granted["role"], granted["changed"]) == ("operator:bob", "approver", True)
    again = walkback("grant", "operator:bob", "approver", "--reason", "x", "--yes", "--store", filled, "--json").json
    assert (again["was"], again["changed"], again["event"]) == ("approver", False, None)
    listed = {row["person"]: row["role"] for row in walkback("roles", "--store", filled, "--json").json["roles"]}
    assert listed["operator:bob"] == "approver"
    assert "operator:bob" in walkback("roles", "--store", filled).out
    assert walkback("grant", "bob", "king", "--reason", "x", "--yes", "--store", filled).code == 2


def test_a_viewer_decides_nothing_and_is_told_whom_to_ask(walkback: Command, filled: str) -> None:
    args = ("--reason", "x", "--yes", "--store", filled)
    assert walkback("grant", "bob", "admin", *args).code == 0
    with open_store(filled) as store:
        store.do(GrantRole(actor=driver.BOB, person=me(filled), role=Role.VIEWER, reason="looks only"))
    for command_line in (("retry", "lost-2"), ("deny", "asks-3"), ("freeze", "everything"), ("grant", "ann", "admin")):
        refused = walkback(*command_line, *args)
        assert refused.code == 1, command_line
        assert "viewer" in refused.err
        assert "admin" in refused.err
    assert op_of(filled, "lost-2")["status"] == "unknown"
    assert "UNKNOWN" in walkback("show", "lost-2#1", "--store", filled).out  # looking is free
    assert walkback("roles", "--store", filled, "--json").json["you"]["role"] == "viewer"


@pytest.mark.parametrize("before", [True, False], ids=["before the command", "after it"])
def test_a_claimed_name_is_kept_beside_the_one_the_system_gives(walkback: Command, filled: str, before: bool) -> None:
    claim, decide = ("--as", "ann of the day shift"), ("note", "lost-2", "--reason", "looking")
    done = walkback("--store", filled, *((*claim, *decide) if before else (*decide, *claim)), "--json").json
    assert (done["by"], done["claim"]) == (me(filled), "ann of the day shift")
    event = last_event(filled, "lost-2")
    assert (event.actor, event.data["as"]) == (me(filled), "ann of the day shift")
    assert "(as ann of the day shift) left a note" in walkback("handover", "--store", filled).out
    assert "as: ann" in walkback("audit", "lost-2", "--store", filled).out


def test_the_last_admin_stays_one(walkback: Command, tmp_path: Path) -> None:
    url = str(tmp_path / "walkback.db")
    walkback_store.open_store(url).close()
    done = walkback("grant", me(url).removeprefix("operator:"), "viewer", "--reason", "x", "--yes", "--store", url)
    assert done.code == 1
    assert "last admin" in done.err


# --- confirming --------------------------------------------------------------------------------------------------


def test_every_dangerous_command_asks_and_no_changes_nothing(filled: str) -> None:
    with terminal(command("cancel", "lost-2", "--reason", "x", "--store", filled), TERM="dumb") as screen:
        screen.until(b"[y/N]")
        screen.type("n\n")
        assert b"nothing was changed" in screen.rest()
        assert screen.process.wait() == 1
    assert run_of(filled, "lost-2")["status"] == "needs_operator"


DANGEROUS = (
    ("approve", "asks-3"), ("deny", "asks-3", "--reason", "x"), ("retry", "lost-2", "--reason", "x"),
    ("resolve", "lost-2", "--absent", "--reason", "x"), ("compensate", "done-1", "--reason", "x"),
    ("resume", "lost-2", "--reason", "x"), ("pause", "goes-4"), ("cancel", "goes-4", "--reason", "x"),
    ("freeze", "everything", "--reason", "x"),
)  # fmt: skip


@pytest.mark.parametrize("args", [args for args in DANGEROUS if args[0] != "resume"], ids=lambda args: args[0])
def test_where_nobody_can_be_asked_nothing_is_done(filled: str, args: tuple[str, ...]) -> None:
    done = subprocess.run(
        command(*args, "--store", filled),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "give --yes" in done.stderr
    with open_store(filled) as store:
        assert [e.data["action"] for e in store.people_since(0) if e.data.get("action") != "grant"] == []


def test_what_changed_while_it_was_being_read_is_refused_and_says_what_changed(filled: str) -> None:
    args = command("resolve", "lost-2", "--absent", "--reason", "x", "--store", filled)
    with terminal(args, TERM="dumb") as screen:
        screen.until(b"[y/N]")
        with open_store(filled) as store:
            found: dict[str, Any] = {"data": {"output": "there"}, "duplicate_suspected": True}
            store.do(AppendLateEvidence(actor="worker:w2", run_id="lost-2", step="1", **found))
        screen.type("y\n")
        said = words(screen.rest().decode())
        code = screen.process.wait()
    assert (code, op_of(filled, "lost-2")["status"]) == (1, "unknown"), said
    assert "changed since you looked" in said


# --- the table and the commands ----------------------------------------------------------------------------------


def test_every_action_that_changes_something_has_a_command_that_exists() -> None:
    from walkback_console.actions import command_for
    from walkback_console.subjects import Subject

    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    member = {"run_id": "r1", "step": "1", "status": "unknown", "run_status": "needs_operator", "evidence": None}
    subject = Subject(at=0, run={"run_id": "r1"}, tool="pay", members=(member,), batch={"batch_no": 7})
    for action in TABLE:
        if action.mutates:
            line = command_for(action, subject, {field.name: "x" for field in action.fields if field.name != "scope"})
            assert line is not None, action.id
            _, name, *rest = line.split()
            assert name in commands, line
            known = {option for parameter in commands[name].params for option in parameter.opts}
            assert [word for word in rest if word.startswith("--") and word not in known] == [], line


def test_a_reason_is_required_where_the_action_asks_for_one() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    required = {
        name
        for name, found in commands.items()
        for parameter in found.params
        if "--reason" in parameter.opts and parameter.required
    }
    assert {"deny", "retry", "compensate", "resume", "cancel", "freeze", "unfreeze", "note", "adopt"} <= required


# --- one step in full --------------------------------------------------------------------------------------------


def test_a_step_is_shown_in_full_with_what_can_be_done_about_it(walkback: Command, filled: str) -> None:
    for args in (("lost-2#1",), ("lo#1",), ("lost-2", "1")):
        said = words(walkback("show", *args, "--store", filled).out)
        order = [
            said.index(part)
            for part in (
                "UNKNOWN: it may have happened", "pay the plumber", "contract", "attempted?", "acknowledged?",
                "proven?", "retry safe?", "attempt 1", "arguments", "What you can do", "verify again", "it happened",
            )
        ]  # fmt: skip
        assert order == sorted(order)
    found = walkback("show", "lost-2#1", "--store", filled, "--json").json
    assert (found["run"]["id"], found["operation"]["step"], found["arguments"]) == ("lost-2", "1", {"step": "1"})
    assert [c["action"] for c in found["choices"]][:2] == ["verify", "happened"]
    assert found["choices"][0]["command"] == "walkback resolve --verify 'lost-2#1'"


def test_an_id_with_a_hash_in_it_is_still_an_id(walkback: Command, store_url: str) -> None:
    with open_store(store_url) as store:
        odd = driver.held(store, "a#1", worker="w1")
        driver.write(odd, "1", description="of the odd one")
    assert json.loads(walkback("show", "a#1", "--store", store_url, "--json").out)["id"] == "a#1"
    assert (
        walkback("show", "a#1#1", "--store", store_url, "--json").json["operation"]["description"] == "of the odd one"
    )


def test_a_step_that_is_not_there_is_named(walkback: Command, filled: str) -> None:
    done = walkback("show", "lost-2#77", "--store", filled)
    assert done.code == 1
    assert "has no step '77'" in done.err
