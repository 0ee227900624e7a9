"""What the `walkback` command says and does, on both databases, and how it ends."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.console.terminal import Command, command, environment, terminal
from tests.store import driver
from tests.support.people import open_store
from walkback_console.cli.options import Status
from walkback_console.whoami import operator_of
from walkback_store import Store
from walkback_store.machine.people import AddNote
from walkback_store.machine.store_wide import Freeze
from walkback_store.words import FreezeScope, RunStatus

LOOKS = (
    ("inbox",),
    ("runs",),
    ("show", "r1"),
    ("events", "r1"),
    ("stats",),
    ("fsck",),
    ("audit", "r1"),
    ("doctor", "--json"),
)
CHANGES = (("backup", "copy.db"), ("prune", "--older-than", "1d", "--yes"), ("adopt", "--reason", "why not", "--yes"))


@pytest.fixture
def filled(store_url: str) -> str:
    """One run that succeeded, one with an unknown, one that waits for an approval."""
    with open_store(store_url) as store:
        done = driver.held(store, "done-1", worker="w1")
        driver.write(done, "1", description="pay the printer", stake="$20")
        driver.finish(done)
        lost = driver.held(store, "lost-2", worker="w2")
        driver.park_unknown(lost, "1", description="pay the plumber", stake="$90", can_verify=True)
        asks = driver.held(store, "asks-3", worker="w3")
        driver.ask(asks, "1", park=True, description="pay the builder", stake="$9,000")
    return store_url


def edit(url: str, *statements: str) -> None:
    """By hand, behind the store's back."""
    with open_store(url) as store, store.backend.engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


# --- which store -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [*LOOKS, *CHANGES], ids=lambda args: str(args[0]))
def test_no_command_creates_a_store_that_is_not_there(walkback: Command, tmp_path: Path, args: tuple[str, ...]) -> None:
    done = walkback("--store", str(tmp_path / "walkback.db"), *args)
    assert done.code == 3
    said = done.out + done.err
    assert f"there is no store at {tmp_path / 'walkback.db'}" in " ".join(said.split())
    assert "--store or WALKBACK_STORE" in " ".join(said.split())
    assert list(tmp_path.iterdir()) == []


def test_the_store_is_named_before_or_after_the_command_or_by_the_environment(
    walkback: Command, filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = str(tmp_path / "wrong.db")
    assert walkback("--store", filled, "runs").code == 0
    assert walkback("runs", "--store", filled).code == 0
    assert walkback("--store", wrong, "runs", "--store", filled).code == 0
    monkeypatch.setenv("WALKBACK_STORE", filled)
    assert walkback("runs").code == 0
    assert walkback("--store", wrong, "runs").code == 3


def test_without_any_address_it_is_walkback_db_in_this_folder(
    walkback: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "the default, ./walkback.db" in walkback("runs").err
    with open_store("walkback.db") as store:
        driver.start(store, "here-1")
    assert "here-1" in walkback("runs").out


def test_an_empty_address_is_a_mistake_and_not_the_default(walkback: Command, tmp_path: Path) -> None:
    done = walkback("--store", "", "runs")
    assert done.code == 3
    assert "empty" in done.err


def test_a_file_that_is_no_store_is_named_in_one_line_without_a_traceback(walkback: Command, tmp_path: Path) -> None:
    file = tmp_path / "notes.db"
    file.write_text("shopping list " * 500)
    done = walkback("--store", str(file), "runs")
    assert (done.code, done.out) == (3, "")
    assert "is not a Walkback store" in done.err
    assert "Traceback" not in done.err
    assert file.read_text().startswith("shopping list")


def test_a_store_that_is_damaged_in_the_middle_ends_without_a_traceback(walkback: Command, tmp_path: Path) -> None:
    file = tmp_path / "walkback.db"
    with open_store(file) as store:
        for i in range(300):
            driver.start(store, f"run-{i:04}")
    data = bytearray(file.read_bytes())
    data[20_000:] = os.urandom(len(data) - 20_000)
    file.write_bytes(data)
    for args in (("runs", "--limit", "1000"), ("fsck",), ("stats",)):
        done = walkback("--store", str(file), *args)
        assert done.code == 1, args
        assert "walkback: " in done.err
        assert "Traceback" not in done.err


# --- looking -----------------------------------------------------------------------------------------------------


def test_the_inbox_lists_what_needs_a_person_most_urgent_first(walkback: Command, filled: str) -> None:
    items = walkback("inbox", "--store", filled, "--json").json["items"]
    assert [(i["kind"], i["why"], i["run"], i["count"]) for i in items] == [
        ("unknown", "unknown", "lost-2", 1),
        ("approval", "big payments", "asks-3", 1),
    ]
    people = walkback("inbox", "--store", filled)
    assert people.code == 0
    assert people.out.startswith("2 things need a person.")
    assert people.out.index("lost-2 #1") < people.out.index("asks-3 #1")
    for words in ("pay the plumber", "$90", "rule: big payments", "walkback show lost-2"):
        assert words in people.out


def test_an_empty_inbox_says_so(walkback: Command, store_url: str) -> None:
    open_store(store_url).close()
    assert walkback("inbox", "--store", store_url).out == "Nothing needs a person.\n"
    assert walkback("inbox", "--store", store_url, "--json").json == {"items": [], "counts": {}, "freezes": []}


def test_a_freeze_is_on_every_list_until_it_is_lifted(walkback: Command, filled: str) -> None:
    with open_store(filled) as store:
        store.do(Freeze(actor=driver.ANN, scope=FreezeScope.TOOL, name="pay", reason="wrong prices"))
    for args in (("inbox",), ("runs",), ("show", "lost-2")):
        assert "FROZEN tool pay: wrong prices (operator:ann" in walkback(*args, "--store", filled).out
    assert walkback("inbox", "--store", filled, "--json").json["freezes"][0]["name"] == "pay"


def test_runs_are_filtered_and_paged_without_loss(walkback: Command, filled: str) -> None:
    def ids(*args: str) -> list[str]:
        return [run["id"] for run in walkback("runs", "--store", filled, "--json", *args).json["runs"]]

    assert ids() == ["asks-3", "lost-2", "done-1"]
    assert ids("--status", "needs_operator", "--status", "waiting") == ["asks-3", "lost-2"]
    assert ids("lo") == ["lost-2"]
    assert ids("--agent", "nobody") == []
    assert ids("--since", "1h") == ["asks-3", "lost-2", "done-1"]
    first = walkback("runs", "--store", filled, "--json", "--limit", "2").json
    assert (first["count"], first["more"]) == (3, False)
    assert ids("--limit", "2", "--after", first["older"]) == ["done-1"]
    by_id = walkback("runs", "--store", filled, "--json", "--limit", "1", "").json
    assert ids("--limit", "9", "--after", by_id["older"], "") == ["done-1", "lost-2"]


def test_a_place_that_is_none_is_refused(walkback: Command, filled: str) -> None:
    done = walkback("runs", "--store", filled, "--after", "yesterday")
    assert done.code == 1
    assert "not a place in the list" in done.err


def test_the_statuses_offered_are_those_of_the_store() -> None:
    assert [s.value for s in Status] == [s.value for s in RunStatus]


def test_show_says_where_a_run_stands_and_what_is_known_of_its_open_call(walkback: Command, filled: str) -> None:
    shown = walkback("show", "lost-2", "--store", filled)
    assert shown.code == 0
    for words in ("needs_operator: unknown", "WRITE pay", "no answer", "attempt 1", "key key-1", "cannot be undone"):
        assert words in shown.out
    run = walkback("show", "lost-2", "--store", filled, "--json").json
    assert {"id", "agent", "status", "why", "step", "steps", "operations"} <= run.keys()
    assert (run["id"], run["agent"], run["status"], run["why"], run["step"]) == (
        "lost-2", "a", "needs_operator", "unknown", "1",
    )  # fmt: skip
    assert [(s["step"], s["name"]) for s in run["steps"]] == [("1", "pay")]
    assert [(o["step"], o["tool"], o["status"]) for o in run["operations"]] == [("1", "pay", "unknown")]
    assert run["unsettled"][0]["attempts"][0]["answer"] == "none"


def test_a_run_is_found_by_the_beginning_of_its_id_if_only_one_begins_so(walkback: Command, filled: str) -> None:
    assert walkback("show", "lo", "--store", filled, "--json").json["id"] == "lost-2"
    with open_store(filled) as store:
        driver.start(store, "lost")
        driver.start(store, "loss-9")
    assert walkback("show", "lost", "--store", filled, "--json").json["id"] == "lost"  # a whole id is always that run
    several = walkback("show", "lo", "--store", filled)
    assert several.code == 1
    assert "loss-9, lost, lost-2" in several.err
    none = walkback("show", "x", "--store", filled)
    assert none.code == 1
    assert "there is no run 'x'" in none.err


def test_show_has_the_newest_steps_and_with_all_every_one(walkback: Command, store_url: str) -> None:
    with open_store(store_url) as store:
        long = driver.held(store, "long")
        for i in range(1, 61):
            driver.write(long, str(i))
    newest = walkback("show", "long", "--store", store_url)
    assert "10 earlier steps; --all shows them." in newest.out
    assert [s["step"] for s in walkback("show", "long", "--store", store_url, "--json").json["steps"]] == [
        str(i) for i in range(11, 61)
    ]
    every = walkback("show", "long", "--store", store_url, "--all", "--json").json
    assert [s["step"] for s in every["steps"]] == [str(i) for i in range(1, 61)]


def test_events_come_whole_and_in_order_however_many(walkback: Command, store_url: str) -> None:
    import json

    with open_store(store_url) as store:
        long = driver.held(store, "long")
        for i in range(1, 31):
            driver.write(long, str(i))
        head = long.run["head_seq"]
    lines = [json.loads(line) for line in walkback("events", "long", "--store", store_url, "--json").out.splitlines()]
    assert [e["seq"] for e in lines] == list(range(1, head + 1))
    assert lines[0]["kind"] == "run_started"
    tail = walkback("events", "long", "--store", store_url, "--json", "--after", str(head - 1)).out.splitlines()
    assert [json.loads(line)["seq"] for line in tail] == [head]
    people = walkback("events", "long", "--store", store_url).out
    assert people.count(" intent #") == 30
    assert "worker_started" in walkback("events", "@store", "--store", store_url).out


def test_following_shows_an_event_of_another_process_and_ends_with_ctrl_c(filled: str) -> None:
    with terminal(command("events", "lost-2", "--follow", "--store", filled), TERM="dumb") as screen:
        screen.until(b"needs_operator")
        with open_store(filled) as store:
            store.do(AddNote(actor=driver.ANN, run_id="lost-2", reason="calling the plumber"))
        screen.until(b"calling the plumber")
        screen.process.send_signal(signal.SIGINT)
        said = screen.rest()
        assert screen.process.wait() == 130, said.decode()
        assert b"Traceback" not in said


def test_a_reader_that_leaves_early_is_no_error_worth_a_traceback(filled: str) -> None:
    args = command("events", "lost-2", "--store", filled)
    with subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        program.stdout.close()
        assert program.stderr.read() == b""


def test_stats_count_runs_rows_and_bytes(walkback: Command, filled: str) -> None:
    found = walkback("stats", "--store", filled, "--json").json
    assert (found["runs"]["succeeded"], found["runs"]["needs_operator"], found["rows"]["runs"]) == (1, 1, 3)
    assert found["bytes"]["total_bytes"] > found["bytes"]["snapshot_bytes"] > 0
    assert "needs_operator" in walkback("stats", "--store", filled).out


# --- checking ----------------------------------------------------------------------------------------------------


def test_fsck_is_clean_until_a_row_is_edited_by_hand(walkback: Command, filled: str) -> None:
    clean = walkback("fsck", "--deep", "--store", filled, "--json")
    assert clean.code == 0
    assert (clean.json["clean"], clean.json["runs"], clean.json["problems"]) == (True, 3, [])
    edit(filled, "UPDATE runs SET status = 'succeeded' WHERE run_id = 'lost-2'")
    found = walkback("fsck", "--store", filled)
    assert found.code == 1
    assert "lost-2: runs: status is 'succeeded', but the log says 'needs_operator'" in " ".join(found.out.split())
    assert walkback("fsck", "done-1", "--store", filled).code == 0
    assert walkback("fsck", "lost-2", "--store", filled, "--json").json["problems"][0]["run"] == "lost-2"


def test_audit_proves_the_chain_and_names_who_decided(walkback: Command, filled: str) -> None:
    with open_store(filled) as store:
        store.do(AddNote(actor=driver.ANN, run_id="lost-2", reason="calling the plumber"))
    whole = walkback("audit", "lost-2", "--store", filled)
    assert whole.code == 0
    assert "whole" in whole.out
    assert "calling the plumber" in whole.out
    found = walkback("audit", "lost-2", "--store", filled, "--json").json
    assert (found["whole"], found["problems"]) == (True, [])
    assert found["actors"]["operator:ann"] == 2
    assert len(found["head"]) == 64


def test_audit_finds_an_event_edited_by_hand(walkback: Command, filled: str) -> None:
    trigger = "events_no_update" if filled.startswith("sqlite") else "events_append_only ON events"
    edit(filled, f"DROP TRIGGER {trigger}", "UPDATE events SET actor = 'operator:nobody' WHERE kind = 'needs_operator'")
    found = walkback("audit", "lost-2", "--store", filled)
    assert found.code == 1
    assert "NOT WHOLE" in found.out
    assert "was edited" in found.out


def test_doctor_names_the_library_the_schema_and_the_home(walkback: Command, filled: str) -> None:
    found = walkback("doctor", "--store", filled, "--json")
    assert found.code == 0
    checks = {check["check"]: check for check in found.json["checks"]}
    assert {"walkback", "store", "schema", "home", "clock"} <= checks.keys()
    assert ("SQLite library" in checks) == filled.startswith("sqlite")
    assert all(check["verdict"] == "ok" for check in checks.values())
    assert walkback("doctor", "--store", filled).code == 0


def test_doctor_sees_a_file_that_others_can_read_and_says_what_to_do(walkback: Command, tmp_path: Path) -> None:
    file = tmp_path / "walkback.db"
    open_store(file).close()
    file.chmod(0o644)
    checks = {c["check"]: c for c in walkback("doctor", "--store", str(file), "--json").json["checks"]}
    assert checks["file mode"]["verdict"] == "look"
    assert checks["file mode"]["do"].startswith(f"chmod 600 {file}")


# --- keeping -----------------------------------------------------------------------------------------------------


def test_a_backup_is_private_is_never_overwritten_and_runs_nothing_until_adopted(
    walkback: Command, tmp_path: Path
) -> None:
    original, copy = str(tmp_path / "walkback.db"), tmp_path / "copy.db"
    with open_store(original) as store:
        driver.start(store)
    made = walkback("backup", str(copy), "--store", original, "--json")
    assert made.json == {"file": str(copy), "bytes": copy.stat().st_size}
    assert copy.stat().st_mode & 0o777 == 0o600
    again = walkback("backup", str(copy), "--store", original)
    assert again.code == 3
    assert "Nothing was overwritten" in again.err
    home = next(
        c for c in walkback("doctor", "--store", str(copy), "--json").json["checks"] if c["check"] == "home"
    )  # fmt: skip
    assert home["verdict"] == "look"
    assert "walkback adopt" in home["do"]
    assert walkback("runs", "--store", str(copy)).code == 0
    adopted = walkback("adopt", "--reason", "the disk died", "--yes", "--store", str(copy), "--json").json
    assert (adopted["adopted"], adopted["by"]) == (True, f"operator:{pwd.getpwuid(os.getuid()).pw_name}")
    with open_store(copy) as store:
        driver.register(store)
        assert driver.claim(store).run_id == "r1"


def test_adopting_needs_a_reason_and_a_copy(walkback: Command, filled: str) -> None:
    assert walkback("adopt", "--yes", "--store", filled).code == 2
    refused = walkback("adopt", "--reason", "just so", "--yes", "--store", filled)
    assert refused.code == 1
    assert "this store is adopted" in refused.err


def test_a_postgresql_store_is_backed_up_with_the_servers_own_tools(
    walkback: Command, pg_url: str, tmp_path: Path
) -> None:
    open_store(pg_url).close()
    done = walkback("backup", str(tmp_path / "copy.db"), "--store", pg_url)
    assert done.code == 1
    assert "pg_dump" in done.err


def test_prune_takes_what_has_finished_and_leaves_what_waits_for_a_person(walkback: Command, filled: str) -> None:
    would = walkback("prune", "--older-than", "0s", "--dry-run", "--store", filled, "--json").json
    assert (would["runs"], would["dry_run"]) == (1, True)
    assert len(walkback("runs", "--store", filled, "--json").json["runs"]) == 3
    done = walkback("prune", "--older-than", "0s", "--yes", "--store", filled, "--json").json
    assert (done["runs"], done["dry_run"]) == (1, False)
    assert {r["id"] for r in walkback("runs", "--store", filled, "--json").json["runs"]} == {"lost-2", "asks-3"}
    assert walkback("audit", "done-1", "--store", filled).code == 0
    assert walkback("fsck", "--store", filled).code == 0
    assert "No run" in walkback("prune", "--older-than", "0s", "--store", filled).out


def test_where_nobody_can_be_asked_a_confirmation_is_an_error(filled: str) -> None:
    done = subprocess.run(
        command("prune", "--older-than", "0s", "--store", filled),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert done.returncode == 2
    assert "give --yes" in done.stderr
    with open_store(filled) as store:
        assert store.run("done-1")["status"] == "succeeded"


def test_the_answer_no_changes_nothing(filled: str) -> None:
    with terminal(command("prune", "--older-than", "0s", "--store", filled), TERM="dumb") as screen:
        screen.until(b"[y/N]")
        screen.type("n\n")
        assert b"nothing was changed" in screen.rest()
        assert screen.process.wait() == 1
    with open_store(filled) as store:
        assert store.run("done-1")["status"] == "succeeded"


def test_usage_errors_end_with_two(walkback: Command, filled: str) -> None:
    for args in (("nonsense",), ("show",), ("prune",), ("prune", "--older-than", "soon"), ("runs", "--status", "odd")):
        assert walkback("--store", filled, *args).code == 2, args


def test_alone_it_prints_its_help(walkback: Command) -> None:
    done = walkback()
    assert done.code == 0
    assert "Usage: walkback" in done.out


# --- who, and how it looks ---------------------------------------------------------------------------------------


def test_the_operator_is_who_the_system_or_the_server_says(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "mallory")
    with open_store(store_url) as store:
        expected = pwd.getpwuid(os.getuid()).pw_name if store_url.startswith("sqlite") else "postgres"
        assert operator_of(store) == f"operator:{expected}"


def long_ids(store: Store) -> list[str]:
    ids = ["0190a6f2-7a53-7c3e-9f3e-2b1f6d1c8e4a", "x" * 90 + "/" + "y" * 109]
    for i, run_id in enumerate(ids):
        lost = driver.held(store, run_id, worker=f"w{i}")
        driver.park_unknown(lost, "1", tool=f"reconcile_statements_{i}", description="reconcile " * 8)
    return ids


@pytest.mark.parametrize(("listed", "before", "after"), [("runs", "run", "agent"), ("inbox", "what", None)])
def test_ids_are_whole_at_80_columns(
    walkback: Command, tmp_path: Path, listed: str, before: str, after: str | None
) -> None:
    with open_store(tmp_path / "walkback.db") as store:
        ids = long_ids(store)
    lines = walkback(listed, "--store", str(tmp_path / "walkback.db")).out.splitlines()
    assert max(map(len, lines)) <= 80
    header = next(line for line in lines if before in line.split())
    start, end = header.index(before), None if after is None else header.index(after)
    column = "".join(line[start:end].strip() for line in lines)
    assert ids[0] in next(line[start:end] for line in lines if ids[0][:8] in line)  # on one line, to be copied
    assert ids[1] in column


def test_python_dash_m_is_the_same_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "walkback_console", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("walkback ")
