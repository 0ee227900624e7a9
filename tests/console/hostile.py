"""A store full of hostile text, for whatever shows stored text to a person."""

from __future__ import annotations

from typing import Any

from tests.console import hostile_app
from tests.store import driver
from tests.support.people import open_store
from walkback_store.machine.operations import AppendLateEvidence, RecordRecovery, RecordVerification, Settle
from walkback_store.machine.people import AddNote
from walkback_store.machine.runs import FailRun, NeedOperator, ParkRun, RecordStep
from walkback_store.machine.store_wide import Freeze, OpenBatch, RegisterWorker, ServiceFailed
from walkback_store.values import encode
from walkback_store.words import Answer, Evidence, FreezeScope, OperationStatus, Why

MARKUP = "[/x][@click=app.bell]m[/][bold]"
EVIL = (
    "\x1b[2J\x1b[31m"  # clear the screen, change the colour
    "\x1b]52;c;ZXZpbA==\x07"  # write to the clipboard
    "\x1b]0;title\x1b\\"
    "\x9b2J\x90q\x9c\x85"  # the same as single bytes
    "\u202e\u2066\u200f"  # turn the reading direction round
    "\u200b\u2060\ufeff\u00ad"  # hide
    "\r\n\t\x08\x7f\u2028\u2029"  # overwrite, and break out of a line
    f"{MARKUP}"
)
EVIL_ID = f"{MARKUP} '; rm -rf $HOME"
"""A run id is printable; that leaves markup, and what a shell would make of it."""

RUNS = {"unknown": f"1 {EVIL_ID}", "asks": f"2 {EVIL_ID}", "failed": f"3 {EVIL_ID}", "waits": f"4 {EVIL_ID}"}
PLAIN = "7"

ALIKE = [f"{n} {EVIL_ID}" for n in "abc"]
"""Three unknowns that make one row."""


def evil(where: str) -> str:
    return f"{where}:{EVIL}"


def printable(where: str) -> str:
    """The store refuses names of steps and workers with anything worse than this."""
    return f"{where}:{MARKUP}"


def fill_hostile(url: str) -> None:
    """A store in which every text that can be hostile is. SQLite, for a row is edited behind its back."""
    with open_store(url) as store:
        agent = evil("agent")
        for worker in (printable("worker"), printable("other worker")):
            store.do(
                RegisterWorker(
                    actor=evil("worker actor"),
                    worker=worker,
                    host=evil("host"),
                    boot_id="elsewhere",
                    pid=1,
                    process_started="1",
                    agents={agent: ["1"]},
                    lease=driver.MINUTE,
                )
            )

        def held(run_id: str) -> driver.Held:
            state = encode({evil("state key"): evil("state value"), "list": [evil("item")] * 3})
            driver.start(
                store, run_id, agent=agent, value={evil("key"): evil("input")}, tags=[evil("tag")], state=state
            )
            return driver.claim(store, printable("worker"), agent)

        h = held(RUNS["unknown"])
        store.do(RecordStep(**h.by, step=printable("step"), name=evil("step name"), data={"said": evil("said")}))
        call: dict[str, Any] = {
            "tool": evil("tool"), "tool_version": evil("version"), "description": evil("description"),
            "stake": evil("stake"), "compensate": evil("undo"), "service": evil("service"),
            "identity": evil("identity"), "args": {evil("argument"): [evil("value")]},
        }  # fmt: skip
        driver.intend(
            h, "2", state={evil("state key"): evil("state value"), "list": [evil("item")], "new": evil("new")}, **call
        )
        cannot_tell = {"detail": evil("found")}
        store.do(RecordVerification(**h.by, step="2", evidence=Evidence.CANNOT_TELL, found=cannot_tell))
        store.do(
            RecordRecovery(
                **h.by,
                step="2",
                attempted=evil("attempted"),
                acknowledged=evil("acknowledged"),
                proven=evil("proven"),
                retry_safe=evil("retry safe"),
                verdict=evil("verdict"),
            )
        )
        store.do(
            Settle(
                **h.by,
                step="2",
                outcome=OperationStatus.UNKNOWN,
                answer=Answer.NONE,
                error_class=evil("error class"),
                error=evil("error"),
            )
        )
        store.do(NeedOperator(**h.by, why=Why.UNKNOWN, detail=evil("why"), step="2"))
        store.do(AddNote(actor=evil("operator"), run_id=h.run_id, reason=evil("note"), owner=evil("owner")))
        store.do(
            AppendLateEvidence(
                actor=evil("late"),
                run_id=h.run_id,
                step="2",
                data={"late": evil("late"), "output": evil("output")},
                duplicate_suspected=True,
            )
        )
        for run_id in ALIKE:
            h = held(run_id)
            driver.intend(h, "1", **call)
            store.do(
                Settle(
                    **h.by,
                    step="1",
                    outcome=OperationStatus.UNKNOWN,
                    answer=Answer.NONE,
                    error_class=evil("alike error class"),
                    error=evil("alike error"),
                )
            )
            store.do(NeedOperator(**h.by, why=Why.UNKNOWN, detail=evil("alike why"), step="1"))
        driver.ask(held(RUNS["asks"]), "1", park=True, **call)
        store.do(
            ServiceFailed(
                actor=evil("breaker"),
                service=printable("service"),
                reason=evil("outage"),
                threshold=1,
                cooldown=driver.MINUTE,
            )
        )
        h = held(RUNS["failed"])
        store.do(FailRun(**h.by, error_class=evil("run error"), message=evil("message"), fingerprint=evil("print")))
        driver.start(store, f"6 {EVIL_ID}", agent=hostile_app.hostile.name, value={})
        driver.start(store, PLAIN, agent="a")
        h = held(RUNS["waits"])
        store.do(ParkRun(**h.by, waits_for=evil("waits for")))
        freezer = f"operator:{evil('freezer')}"
        store.do(OpenBatch(actor=freezer, action="retry", members=[(RUNS["unknown"], "2")], reason=evil("batch")))
        for scope in (FreezeScope.TOOL, FreezeScope.AGENT):
            store.do(Freeze(actor=freezer, scope=scope, name=evil(scope.value), reason=evil("reason")))
    # And a row that fsck has to quote.
    with open_store(url) as store, store.backend.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE runs SET error_class = ? WHERE error_class IS NOT NULL", (evil("edited"),))
