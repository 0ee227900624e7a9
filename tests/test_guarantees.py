"""docs/guarantees.md says what the code does: the table of outcomes cell by cell, and each promise in a simulation."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import walkback as wb
from tests.support.people import open_store
from walkback import execution, flight, retries, terms
from walkback.outcomes import TABLE, Standing, Verdict, judge, weigh, when_spent
from walkback.terms import SECOND
from walkback.testing import Clock, Ledger, Plan, Service, Simulation
from walkback.tools import Registry
from walkback.worker import Crew
from walkback_store import Store
from walkback_store.log import Row
from walkback_store.machine.people import Approve, RecordAbsent
from walkback_store.people import operator_of
from walkback_store.words import Answer, Evidence, Why

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "guarantees.md").read_text()
SETTLE, DAY, TIMEOUT = timedelta(seconds=20), timedelta(hours=24), 30 * SECOND


def table_of(heading: str) -> list[list[str]]:
    """The first table below a heading, without the line of dashes."""
    after = PAGE[PAGE.index(f"## {heading}\n") :]
    lines = re.search(r"(^\|.*\n)+", after, re.MULTILINE)
    assert lines is not None
    rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in lines[0].splitlines()]
    return [row for row in rows if not set("".join(row)) <= {"-", " "}]


# --- the table of outcomes ---------------------------------------------------------------------------------------


def test_every_cell_of_the_table_of_outcomes_is_on_the_page() -> None:
    (_, *answers), *rows = table_of("Answer and evidence")
    assert answers == [answer.value for answer in Answer]
    said = {(answer, row[0].strip("*")): words for row in rows for answer, words in zip(answers, row[1:], strict=True)}
    meant = {(a.value, "no verify" if e is None else e.value): cell.words for (a, e), cell in TABLE.items()}
    assert said == meant


def test_the_words_of_a_cell_are_what_it_decides() -> None:
    for (answer, evidence), cell in TABLE.items():
        can = {judge(answer, evidence, Standing(*flags)).value for flags in itertools.product((False, True), repeat=4)}
        words = cell.words.replace("on its word", "")
        wanted = {verdict.value for verdict in Verdict if verdict.value in words}
        if cell.words.startswith("retry within the budget"):
            wanted.remove("failed")  # that is what `when_spent` says
        assert can == wanted, (answer, evidence)


def test_a_spent_budget_is_a_failure_only_where_nothing_happened_for_good() -> None:
    for answer, evidence in TABLE:
        proven = evidence is Evidence.ABSENT and answer is not Answer.ACKNOWLEDGED
        assert when_spent(answer, evidence) is (Verdict.FAILED if proven else Verdict.UNKNOWN)


def test_absent_is_for_good_from_a_declared_moment_on() -> None:
    assert weigh(Evidence.ABSENT, 9, 10) is Evidence.ABSENT_SO_FAR
    assert weigh(Evidence.ABSENT, 10, 10) is Evidence.ABSENT
    assert weigh(Evidence.ABSENT, 1 << 62, None) is Evidence.ABSENT_SO_FAR


def test_the_numbers_on_the_page_are_those_of_the_code() -> None:
    text = " ".join(PAGE.split())
    breaker = wb.Breaker()
    words = {3: "three", 5: "five"}
    for said in (
        f"after {2 * flight.FIRST_LOOK / SECOND:g} s, {4 * flight.FIRST_LOOK / SECOND:g} s",
        f"up to {4 * terms.PATIENCE // SECOND} s apart",
        f"ends after {words[flight.LOOKS]} looks",
        f"{words[execution.MAX_CRASHES]} workers died",
        f"after {words[breaker.failures]} calls in a row",
        f"for {breaker.cooldown.total_seconds():g} seconds",
    ):
        assert said in text, said
    assert retries.WRITES.attempts > 1


def test_every_reason_for_which_a_person_is_asked_is_on_the_page() -> None:
    listed = {row[0].strip("`") for row in table_of("What a person has to do")[1:]}
    assert listed == {why.value for why in Why} - {"budget_spent"}, "budget_spent is for what does not exist yet"


# --- every cell of the second table, simulated -------------------------------------------------------------------


@dataclass(slots=True)
class World:
    """What is outside, in the trial under way; and the one tool of that trial."""

    clock: Clock
    n: int = 0
    retention: int = 0
    stale: int = 0
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def service(self) -> Service:
        return Service(self.ledger, self.clock, self.retention)

    def tool(self, **contract: Any) -> wb.Tool:
        def act(*, op: wb.Op) -> str:
            return self.do(op.key)

        given = dict(contract)
        if given.pop("look", False):
            given["verify"] = self.look
        if given.pop("own", False):
            given["identity"] = f"it {self.n}"
        return wb.tool(**given)(act)

    def do(self, key: str) -> str:
        self.service.do("it", key=key if self.retention else None)
        return "done"

    def look(self, op: wb.Op) -> wb.Evidence:
        found = self.service.find("it", as_of=self.clock.now - self.stale)
        return wb.happened("done") if found else wb.absent()


@wb.tool(effect="write")
def undo() -> None:
    raise AssertionError("nothing is undone here")


@dataclass(frozen=True, slots=True)
class Trouble:
    process: str | None = None
    """What happens to the worker at a point of the protocol."""
    point: str = ""
    call: str | None = None
    """What happens to the first call."""
    lands: timedelta | None = None
    """When the effect of that call comes, after its deadline."""
    stale: timedelta = timedelta(0)


DECLARED: dict[str, dict[str, Any]] = {
    "read": {"effect": "read"},
    "neither": {},
    "`verify`": {"look": True},
    "`verify`, `settle`": {"look": True, "settle": SETTLE},
    "key": {"idempotent": DAY},
    "key, `verify`, `settle`": {"idempotent": DAY, "look": True, "settle": SETTLE},
}
TROUBLES = {
    "the worker is killed before the intent is committed": Trouble("crash", "commit:Intend"),
    "it is killed after that, before the call": Trouble("crash", "call"),
    "it is killed after the effect, before the outcome is committed": Trouble("crash", "commit:Settle"),
    "the answer is lost": Trouble(call="response lost"),
    "the request is lost": Trouble(call="request lost"),
    "an error that proves nothing": Trouble(call="error after"),
    "the effect comes late, within `settle`": Trouble(call="request lost", lands=SETTLE / 2),
    "the effect comes late, after `settle`": Trouble(call="request lost", lands=2 * SETTLE),
    "what `verify` reads lags by more than `settle`": Trouble(call="response lost", stale=3 * SETTLE),
    "the worker freezes before the call, wakes before the deadline": Trouble("frozen briefly", "call"),
    "the worker freezes before the call, wakes after the deadline": Trouble("frozen for long", "call"),
    "the worker freezes after the effect": Trouble("frozen for long", "commit:Settle"),
    "the lease is lost, and nobody has taken over yet": Trouble("lease lost", "call"),
    "the answer to COMMIT of the intent is lost": Trouble("commit lost", "commit:Intend"),
    "the answer to COMMIT of the outcome is lost": Trouble("commit lost", "commit:Settle"),
}


@dataclass(slots=True)
class Trial:
    effects: int
    run: Row
    operation: Row
    events: list[Any]


class Laboratory:
    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self._numbers = itertools.count(1)
        self._wishes: dict[str, list[str]] = {}
        """What is wished for when all goes well, by contract."""

    def trial(self, contract: dict[str, Any], trouble: Trouble, *, retention: timedelta = DAY) -> Trial:
        if trouble.process is None:
            return self._trial(contract, trouble, retention, None)
        wishes = self._wishes.setdefault(str(contract), [])
        if not wishes:
            self._trial(contract, Trouble(), retention, None, wishes)
        return self._trial(contract, trouble, retention, wishes.index(trouble.point))

    def _trial(
        self,
        contract: dict[str, Any],
        trouble: Trouble,
        retention: timedelta,
        at: int | None,
        wishes: list[str] | None = None,
    ) -> Trial:
        n = next(self._numbers)
        world = World(self.clock, n, stale=trouble.stale // timedelta(microseconds=1))
        world.retention = retention // timedelta(microseconds=1) if "idempotent" in contract else 0
        tool = world.tool(**contract)

        @wb.agent(name=f"agent{n}")
        def agent(run: wb.Run) -> str:
            try:
                return str(run.call(tool))
            except wb.ToolFailed:
                return "failed"

        registry = Registry([tool, undo])
        registry.check()
        calls = {} if trouble.call is None else {(tool.name, 1): trouble.call}
        plan = Plan(at=at, process=trouble.process if at is not None else None, calls=calls)
        sim = Simulation(self.store, self.clock, Crew({(agent.name, "1"): agent}), registry, plan=plan, version=f"v{n}")
        run_id = f"run{n}"
        try:
            sim.start(agent.name, run_id)
            if "approval" in contract:
                sim.run()
                self._approve(run_id)
            if trouble.lands is not None:
                key = terms.key_of(run_id, "1", tool.name, tool.args_hash({}))
                if (identity := tool.identity_of({})) is not None:
                    key = terms.identity_key(tool.name, identity, 1)
                late = trouble.lands // timedelta(microseconds=1)
                sim.at(self.clock.now + TIMEOUT + late, lambda: world.do(key))
            sim.run()
        finally:
            sim.close()
        assert len(sim.troubles) == (at is not None)
        if wishes is not None:
            wishes += sim.wishes
        return Trial(
            len(world.ledger.effects),
            self.store.run(run_id),
            self.store.operation(run_id, "1").operation,
            list(self.store.events(run_id, limit=1000)),
        )

    def _approve(self, run_id: str) -> None:
        (asked,) = self.store.operation(run_id, "1").approvals
        about: dict[str, Any] = {"run_id": run_id, "step": "1", "n": asked["n"], "digest": asked["digest"]}
        self.store.do(Approve(actor="operator:ann", **about, regret=0))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Laboratory]:
    clock = Clock()
    with open_store(tmp_path / "lab.db", clock=clock) as store:
        yield Laboratory(store, clock)


def what_became_of(trial: Trial) -> str:
    """In the words of the page."""
    if trial.run["status"] == "needs_operator":
        assert (trial.run["why"], trial.operation["status"]) == ("unknown", "unknown")
        assert trial.effects <= 1
        return "asks"
    assert (trial.run["status"], trial.operation["status"]) == ("succeeded", "succeeded")
    if trial.operation["effect"] == "read":
        return "again" if trial.effects > 1 else "once"
    assert trial.effects >= 1
    return "once" if trial.effects == 1 else "may be two"


def promised() -> dict[str, dict[str, str]]:
    (_, *declared), *rows = table_of("What each declaration is worth")
    assert declared == list(DECLARED)
    return {row[0]: dict(zip(declared, row[1:], strict=True)) for row in rows}


def test_the_page_promises_something_about_every_trouble() -> None:
    assert promised().keys() == TROUBLES.keys()


@pytest.mark.parametrize("trouble", TROUBLES)
def test_every_promise_is_kept(trouble: str, lab: Laboratory) -> None:
    found = {name: what_became_of(lab.trial(contract, TROUBLES[trouble])) for name, contract in DECLARED.items()}
    assert found == promised()[trouble]


@pytest.mark.parametrize("declared", ["neither", "`verify`, `settle`", "key"])
@pytest.mark.parametrize("more", [{"own": True}, {"approval": True}, {"compensate": "undo"}], ids=str)
def test_identity_approval_and_compensation_change_no_cell(
    declared: str, more: dict[str, Any], lab: Laboratory
) -> None:
    for name, trouble in TROUBLES.items():
        assert what_became_of(lab.trial(DECLARED[declared] | more, trouble)) == promised()[name][declared], name


# --- the rest of the page ----------------------------------------------------------------------------------------


def test_without_key_and_settle_absent_is_never_believed(lab: Laboratory) -> None:
    trial = lab.trial({"look": True}, Trouble(call="request lost"))
    assert (trial.operation["status"], trial.operation["evidence"]) == ("unknown", "absent_so_far")
    assert trial.effects == 0


@pytest.mark.parametrize(("remembered", "became"), [(timedelta(seconds=61), "once"), (timedelta(seconds=59), "asks")])
def test_a_key_holds_while_a_whole_attempt_fits_before_it_is_forgotten(
    remembered: timedelta, became: str, lab: Laboratory
) -> None:
    """The answer is lost at 30 s, and another attempt may take 30 s more."""
    retry = wb.Retry(base=timedelta(0))
    contract = {"idempotent": remembered, "retry": retry}
    assert what_became_of(lab.trial(contract, Trouble(call="response lost"), retention=remembered)) == became


def test_a_spent_budget_without_proof_is_unknown_and_with_proof_a_failure(lab: Laboratory) -> None:
    once = {"retry": wb.Retry(attempts=1)}
    for declared, became in (("key", "unknown"), ("`verify`, `settle`", "failed")):
        trial = lab.trial(DECLARED[declared] | once, Trouble(call="request lost"))
        assert trial.operation["status"] == became
        assert trial.effects == 0


def test_a_frozen_worker_does_not_call_after_the_deadline(lab: Laboratory) -> None:
    trial = lab.trial({}, Trouble("frozen for long", "call"))
    assert (trial.operation["status"], trial.effects) == ("unknown", 0)


def test_the_four_questions_are_answered_before_anything_is_done(lab: Laboratory) -> None:
    trial = lab.trial({"idempotent": DAY}, Trouble("crash", "commit:Settle"))
    kinds = [event.kind for event in trial.events]
    assert kinds.index("intent") < kinds.index("recovery") < kinds.index("attempt") < kinds.index("outcome")
    (said,) = [event.data for event in trial.events if event.kind == "recovery"]
    assert said["attempted"].startswith("yes: attempt 1 by")
    assert said["acknowledged"].startswith("no")
    assert said["proven"] == "no: the tool has no verify"
    assert said["retry_safe"] == "yes: the other side still knows the key"
    assert said["verdict"] == "retry"


def test_what_a_fenced_off_worker_learned_is_kept_and_raises_the_suspicion(lab: Laboratory) -> None:
    """It freezes after its effect, which verify cannot see for too long: there are two, and its answer shows it."""
    trouble = Trouble("frozen for long", "commit:Settle", stale=3 * SETTLE)
    trial = lab.trial({"look": True, "settle": SETTLE}, trouble)
    assert trial.effects == 2
    assert trial.operation["duplicate_suspected"] == 1
    (late,) = [event for event in trial.events if event.kind == "late_evidence"]
    assert late.data["answer"] == "acknowledged"
    with_key = lab.trial({"look": True, "settle": SETTLE, "idempotent": DAY}, trouble)
    assert (with_key.effects, with_key.operation["duplicate_suspected"]) == (1, 0)


def test_a_late_effect_whose_answer_comes_is_shown_as_a_suspected_duplicate(tmp_path: Path) -> None:
    """With real threads: a call that hangs past its deadline and its settle time, and takes effect all the same."""
    wake, attempts = threading.Event(), itertools.count(1)
    effects: list[str] = []

    def look(op: wb.Op) -> wb.Evidence:
        return wb.happened() if effects else wb.absent()

    @wb.tool(effect="write", timeout=0.2, verify=look, settle=timedelta(seconds=0.1), retry=wb.Retry(base=timedelta(0)))
    def act() -> None:
        if next(attempts) == 1:
            wake.wait(30)
        effects.append("it")

    @wb.agent
    def agent(run: wb.Run) -> None:
        run.call(act)

    with wb.App(tmp_path / "walkback.db", agents=[agent]) as app:
        app.start(agent, run_id="r")
        app.run_until_idle()
        assert (app.status("r"), effects) == ("succeeded", ["it"])
        wake.set()
        until = time.monotonic() + 20
        while not (row := app.store.operation("r", "1").operation)["duplicate_suspected"]:
            assert time.monotonic() < until, row
            threading.Event().wait(0.01)
        assert effects == ["it", "it"]
        assert [item["kind"] for item in app.store.inbox(app.store.now())] == ["duplicate_suspected"]


def test_a_call_that_a_person_called_absent_too_early_is_suspected(tmp_path: Path) -> None:
    """The reason why the page says: let the deadline pass."""
    wake, done = threading.Event(), threading.Event()

    @wb.tool(effect="write", timeout=0.2)
    def act() -> None:
        wake.wait(30)
        done.set()

    @wb.agent
    def agent(run: wb.Run) -> str:
        try:
            run.call(act)
        except wb.ToolFailed:
            return "failed"
        return "done"

    with wb.App(tmp_path / "walkback.db", agents=[agent]) as app:
        app.start(agent, run_id="r")
        app.run_until_idle()
        app.store.do(RecordAbsent(actor=operator_of(app.store), run_id="r", step="1", reason="not to be seen"))
        app.run_until_idle()
        assert app.result("r") == "failed"
        wake.set()
        assert done.wait(20)
        until = time.monotonic() + 20
        while not app.store.operation("r", "1").operation["duplicate_suspected"]:
            assert time.monotonic() < until
            threading.Event().wait(0.01)
