"""What the console asks about runs, steps, events and people: right, in order, a page at a time, and within bounds."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import event, select, text

from tests.store.driver import (
    ANN,
    BEGINNING,
    BOB,
    DIGEST,
    MINUTE,
    SECOND,
    Clock,
    Held,
    ask,
    finish,
    held,
    intend,
    lose_track,
    open_with_clock,
    park_unknown,
    register,
    start,
    succeed,
    write,
)
from tests.support.people import open_store
from tests.support.proxy import CuttingProxy
from walkback_store import claiming, schema
from walkback_store.engine import Committed
from walkback_store.errors import NotFound, StoreError, TooSlow, Unreachable
from walkback_store.housekeeping import adopt, prune
from walkback_store.log import Event, Row
from walkback_store.machine.base import STORE
from walkback_store.machine.operations import (
    AppendLateEvidence,
    EndAttempt,
    RecordRecovery,
    RecordVerification,
    Settle,
    StartAttempt,
)
from walkback_store.machine.people import AddNote, Approve, DecideRetry, Refuse, RequestCancel
from walkback_store.machine.runs import ClaimRun, FailRun, NeedOperator, ParkRun, RecordStep, SendSignal, StartRun
from walkback_store.machine.store_wide import (
    Freeze,
    LoseWorker,
    OpenBatch,
    RegisterWorker,
    StopBatch,
    StopWorker,
    Unfreeze,
)
from walkback_store.paging import above
from walkback_store.queries import COUNT_LIMIT, MAX_PAGE, PAGE, Cursor, Queries, RunFilter
from walkback_store.run_lists import MAX_RANGES
from walkback_store.store import Store
from walkback_store.words import Answer, Effect, Evidence, FreezeScope, OperationStatus, RunStatus, Why

HOUR = 60 * MINUTE


@pytest.fixture
def opened(store_url: str) -> Iterator[tuple[Store, Clock]]:
    store, clock = open_with_clock(store_url)
    with store:
        yield store, clock


@pytest.fixture
def store(opened: tuple[Store, Clock]) -> Store:
    return opened[0]


def ids(rows: list[Row]) -> list[str]:
    return [row["run_id"] for row in rows]


# --- pages of runs -----------------------------------------------------------------------------------------------


def forwards(store: Store, where: RunFilter, size: int) -> list[list[str]]:
    pages, after = [], None
    while True:
        page = store.runs(where, limit=size, after=after)
        pages.append(ids(page.rows))
        assert (page.newer is None) == (after is None)
        if page.older is None:
            return pages
        after = page.older


def backwards(store: Store, where: RunFilter, size: int) -> list[list[str]]:
    page = store.runs(where, limit=size, last=True)
    assert page.older is None
    pages = [ids(page.rows)]
    while page.newer is not None:
        page = store.runs(where, limit=size, before=page.newer)
        assert page.older is not None
        pages.insert(0, ids(page.rows))
    return pages


def flat(pages: list[list[str]]) -> list[str]:
    return [run_id for page in pages for run_id in page]


def check_pages(store: Store, where: RunFilter, expected: list[str]) -> None:
    """Every page of every size in both directions, against the whole list."""
    assert ids(store.runs(where, limit=MAX_PAGE).rows) == expected
    assert store.count_runs(where).n == len(expected)
    for size in (1, 2, 7):
        there, back = forwards(store, where, size), backwards(store, where, size)
        assert flat(there) == expected, (where, size)
        assert flat(back) == expected, (where, size)
        assert all(len(page) == size for page in there[:-1])
        assert all(len(page) == size for page in back[1:])


AGENTS = ("billing-a", "billing-b", "crm", "mail")
TAGS = ("blue", "red")


@pytest.fixture
def mixed(opened: tuple[Store, Clock]) -> tuple[Store, list[Row]]:
    """Runs of several agents, tags and statuses, many of them begun at the same time; newest first."""
    store, clock = opened
    pick = random.Random(4)
    register(store, "w", AGENTS)
    for n in range(40):
        agent = pick.choice(AGENTS)
        tags = [tag for tag in TAGS if pick.random() < 0.5]
        start(store, f"{pick.choice('abc')}-{n:02}", agent=agent, tags=tags)
        if n % 3 == 0:
            clock.pass_(SECOND)
    for n in range(24):
        agent = AGENTS[n % len(AGENTS)]
        for claimed in store.claim("w", {agent: ["1"]}):
            assert claimed.run is not None
            h = Held(store, claimed.run["run_id"], "w", claimed.run["fence"])
            if n % 4 == 0:
                finish(h)
            elif n % 4 == 1:
                store.do(FailRun(**h.by, error_class="Boom", message="it broke", fingerprint=f"f{n % 3}"))
            elif n % 4 == 2:
                park_unknown(h, "1")
    rows = store.runs(limit=MAX_PAGE).rows
    assert len({row["status"] for row in rows}) == 4
    return store, sorted(rows, key=lambda row: (row["created_at"], row["run_no"]), reverse=True)


def has_tag(row: Row, tag: str) -> bool:
    return f'"{tag}"' in (row["tags"] or "")


def expected_of(rows: list[Row], where: RunFilter) -> list[str]:
    """The filter once more, in the plainest words."""
    found = [
        row
        for row in rows
        if (not where.status or row["status"] in where.status)
        and (where.agent is None or row["agent"] == where.agent)
        and (where.agent_prefix is None or row["agent"].startswith(where.agent_prefix))
        and (where.tag is None or has_tag(row, where.tag))
        and (where.since is None or row["created_at"] >= where.since)
        and (where.until is None or row["created_at"] < where.until)
        and (where.prefix is None or row["run_id"].startswith(where.prefix))
        and (where.fingerprint is None or row["fingerprint"] == where.fingerprint)
    ]
    return sorted(ids(found)) if where.prefix is not None else ids(found)


def test_pages_of_all_runs_fit_together_in_both_directions(mixed: tuple[Store, list[Row]]) -> None:
    store, rows = mixed
    check_pages(store, RunFilter(), ids(rows))


STATUS: list[dict[str, Any]] = [
    {},
    {"status": ["running"]},
    {"status": ["succeeded", "failed"]},
    {"status": ["failed", "failed"]},
    {"status": ["paused"]},
    {"status": ["no such status"]},
]
AGENT: list[dict[str, Any]] = [
    {},
    {"agent": "crm"},
    {"agent": "nobody"},
    {"agent_prefix": "billing-"},
    {"agent_prefix": ""},
    {"agent_prefix": "zzz"},
    {"agent": "billing-a", "agent_prefix": "billing"},
    {"agent": "crm", "agent_prefix": "billing"},
]
TAG: list[dict[str, Any]] = [{}, {"tag": "red"}, {"tag": "green"}]
TIME: list[dict[str, Any]] = [
    {},
    {"since": BEGINNING + 3 * SECOND},
    {"until": BEGINNING + 9 * SECOND},
    {"since": BEGINNING + 3 * SECOND, "until": BEGINNING + 9 * SECOND},
    {"since": BEGINNING + 9 * SECOND, "until": BEGINNING + 3 * SECOND},
    {"since": -(10**30), "until": 10**30},
]
PREFIX: list[dict[str, Any]] = [{}, {"prefix": "a-"}, {"prefix": ""}, {"prefix": "c-1"}, {"prefix": "z"}]
FINGERPRINT: list[dict[str, Any]] = [{}, {"fingerprint": "f0"}]


@pytest.mark.parametrize("of_agent", AGENT, ids=str)
def test_every_combination_of_filters_finds_exactly_its_runs(
    mixed: tuple[Store, list[Row]], of_agent: dict[str, Any]
) -> None:
    store, rows = mixed
    for parts in product(STATUS, TAG, TIME, PREFIX, FINGERPRINT):
        where = RunFilter(**of_agent, **{name: value for part in parts for name, value in part.items()})
        expected = expected_of(rows, where)
        assert ids(store.runs(where).rows) == expected, where
        assert store.count_runs(where).n == len(expected), where


@pytest.mark.parametrize(
    "where",
    [
        RunFilter(status=["running"]),
        RunFilter(status=["succeeded", "failed"]),
        RunFilter(agent="crm"),
        RunFilter(agent_prefix="billing-"),
        RunFilter(tag="red"),
        RunFilter(since=BEGINNING + 3 * SECOND, until=BEGINNING + 9 * SECOND),
        RunFilter(prefix="b"),
        RunFilter(prefix="b", status=["running"], tag="blue"),
        RunFilter(status=["running"], agent="crm", tag="red", since=BEGINNING + 2 * SECOND),
    ],
    ids=str,
)
def test_pages_of_a_filtered_list_fit_together(mixed: tuple[Store, list[Row]], where: RunFilter) -> None:
    store, rows = mixed
    expected = expected_of(rows, where)
    assert expected
    check_pages(store, where, expected)


def test_a_common_tag_and_a_rare_status_find_the_same_whichever_leads(opened: tuple[Store, Clock]) -> None:
    store, _ = opened
    register(store)
    for n in range(30):
        start(store, f"r{n:02}", tags=["common"] + (["rare"] if n == 7 else []))
    for _ in range(3):
        (claimed,) = store.claim("w", {"a": ["1"]})
        assert claimed.run is not None
        finish(Held(store, claimed.run["run_id"], "w", claimed.run["fence"]))
    assert ids(store.runs(RunFilter(tag="common", status=["succeeded"])).rows) == ["r02", "r01", "r00"]
    assert ids(store.runs(RunFilter(tag="rare", status=["running"])).rows) == ["r07"]


def test_an_agent_prefix_that_fits_very_many_agents_works_row_by_row(opened: tuple[Store, Clock]) -> None:
    store, _ = opened
    count = MAX_RANGES + 5
    store.commit([StartRun(actor=ANN, run_id=f"r{n:03}", agent=f"team-{n:03}") for n in range(count)])
    store.commit([StartRun(actor=ANN, run_id=f"other{n}", agent="unit") for n in range(3)])
    expected = [f"r{n:03}" for n in reversed(range(count))]
    assert ids(store.runs(RunFilter(agent_prefix="team-"), limit=MAX_PAGE).rows) == expected
    assert store.count_runs(RunFilter(agent_prefix="team-")).n == count
    assert ids(store.runs(RunFilter(agent_prefix="team-", status=["running"]), limit=2).rows) == expected[:2]


def test_pages_stay_where_they_are_while_runs_are_added(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    for n in range(6):
        start(store, f"r{n}")
        clock.pass_(SECOND)
    first = store.runs(limit=2)
    assert ids(first.rows) == ["r5", "r4"]
    start(store, "new")
    second = store.runs(limit=2, after=first.older)
    assert ids(second.rows) == ["r3", "r2"]
    clock.pass_(SECOND)
    start(store, "newer")
    assert ids(store.runs(limit=2, after=second.older).rows) == ["r1", "r0"]
    again = store.runs(limit=2, before=second.newer)
    assert ids(again.rows) == ["r5", "r4"]
    assert again.newer is not None
    front = store.runs(limit=2, before=again.newer)
    assert ids(front.rows) == ["newer", "new"]
    assert front.newer is None


def test_arrows_tell_the_truth_about_runs_that_went_elsewhere(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    register(store)
    for n in range(4):
        start(store, f"r{n}")
        clock.pass_(SECOND)
    running = RunFilter(status=["running"])
    first = store.runs(running, limit=2)
    claimed = store.claim("w", {"a": ["1"]}, 4)
    by_id = {c.run["run_id"]: c.run["fence"] for c in claimed if c.run is not None}
    for run_id in ("r2", "r3"):
        finish(Held(store, run_id, "w", by_id[run_id]))
    second = store.runs(running, limit=2, after=first.older)
    assert ids(second.rows) == ["r1", "r0"]
    assert second.newer is None  # what was in front of it is not running any more
    assert store.runs(running, limit=2, before=(0, 0)).older is None


def test_an_empty_store_has_one_empty_page(store: Store) -> None:
    for options in ({}, {"last": True}, {"after": (BEGINNING, 1)}, {"before": (BEGINNING, 1)}):
        page = store.runs(**options)
        assert (page.rows, page.older, page.newer) == ([], None, None)
    assert store.count_runs().n == 0


@pytest.mark.parametrize("size", [-5, 0, 1, 10**9])
def test_a_page_has_at_least_one_run_and_at_most_a_thousand(opened: tuple[Store, Clock], size: int) -> None:
    store, _ = opened
    store.commit([StartRun(actor=ANN, run_id=f"r{n}", agent="a") for n in range(3)])
    assert len(store.runs(limit=size).rows) == min(3, max(1, size))


# --- prefixes ----------------------------------------------------------------------------------------------------

AWKWARD = (
    "100%", "100%-a", "100_", "100x", "Order-1", "order-1", "order-10", "order-2", "ordeR", "é", "é-1", "e\u0301",
    "\ud7ff", "\ud7ff-x", "\ue000", "\uffff-last", "\U0010ffff", "\U0010ffff\U0010ffff-x", "日本-1", "日本", "🎉-party",
)  # fmt: skip


@pytest.fixture
def awkward(opened: tuple[Store, Clock]) -> tuple[Store, list[str]]:
    """Runs and agents with names that wildcards, cases and the ends of Unicode are about.

    The state machine takes only printable run ids; agents may be called anything.
    """
    store, _ = opened
    names = [name for name in AWKWARD if name.isprintable()]
    for n, agent in enumerate(AWKWARD):
        run_id = agent if agent.isprintable() else f"run of agent {n}"
        start(store, run_id, agent=agent)
    return store, names


PREFIXES = (
    *AWKWARD, "", "1", "%", "_", "100_", "O", "o", "e", "\ud7ff", "\ue000", "\U0010ffff", "\U0010ffff\U0010ffff", "日",
    "🎉", "[", "\\", "'", '"', "order-1\x00", "\x00", "\ud800", "a\udfff", "\udc00\ud800",
)  # fmt: skip


def test_prefixes_are_exact(awkward: tuple[Store, list[str]]) -> None:
    store, names = awkward
    for prefix in PREFIXES:
        expected = sorted((name for name in names if name.startswith(prefix)), key=lambda name: name.encode())
        found = ids(store.runs(RunFilter(prefix=prefix)).rows)
        assert [name for name in found if not name.startswith("run of agent")] == expected, ascii(prefix)
        agents = {row["agent"] for row in store.runs(RunFilter(agent_prefix=prefix)).rows}
        assert agents == {name for name in AWKWARD if name.startswith(prefix)}, ascii(prefix)
        assert store.count_runs(RunFilter(agent_prefix=prefix)).n == len(agents), ascii(prefix)


def test_a_name_that_cannot_be_stored_is_not_found(store: Store) -> None:
    held(store, "r")
    for name in ("\ud800", "\x00", "a\x00b", "x\udfff"):
        for where in (
            RunFilter(agent=name), RunFilter(tag=name), RunFilter(status=[name]), RunFilter(fingerprint=name),
        ):  # fmt: skip
            assert store.runs(where).rows == []
            assert store.count_runs(where).n == 0
        for question in (store.run, store.events, store.timeline):
            with pytest.raises(NotFound):
                question(name)
        with pytest.raises(NotFound):
            store.operation("r", name)
        assert store.waiting_signals("r", name) == []


def test_above_is_the_first_text_beyond_a_prefix() -> None:
    assert above("a") == "b"
    assert above("a\U0010ffff") == "b"
    assert above("\ud7ff") == "\ue000"
    assert above("\U0010ffff") is None
    assert above("") is None


# --- counts ------------------------------------------------------------------------------------------------------


def test_counts_are_exact_up_to_ten_thousand_and_no_further(store: Store) -> None:
    for first in range(0, COUNT_LIMIT, 1000):
        store.commit([StartRun(actor=ANN, run_id=f"r{n}", agent="a", tags=["t"]) for n in range(first, first + 1000)])
    where = [
        RunFilter(),
        RunFilter(agent="a"),
        RunFilter(status=["running"]),
        RunFilter(tag="t"),
        RunFilter(prefix="r"),
    ]
    assert {str(store.count_runs(w)) for w in where} == {"10,000"}
    assert str(store.status_counts()["running"]) == "10,000"
    store.do(StartRun(actor=ANN, run_id="r-one-more", agent="a", tags=["t"]))
    assert {str(store.count_runs(w)) for w in where} == {"10,000+"}
    assert {store.count_runs(w).n for w in where} == {COUNT_LIMIT}
    assert str(store.status_counts()["running"]) == "10,000+"


def test_status_counts_name_every_status(mixed: tuple[Store, list[Row]]) -> None:
    store, rows = mixed
    counts = store.status_counts()
    assert set(counts) == set(RunStatus)
    for status in RunStatus:
        assert counts[status].n == sum(row["status"] == status for row in rows)
        assert not counts[status].more


# --- one run -----------------------------------------------------------------------------------------------------


def test_a_timeline_is_in_the_order_in_which_steps_began(store: Store) -> None:
    h = held(store)
    store.do(RecordStep(**h.by, step="1", step_kind="decide", name="how"))
    write(h, "2", tool="pay")
    intend(h, "6.2", tool="mail")
    intend(h, "6.1", tool="ship", effect=Effect.READ)
    succeed(h, "6.1")
    succeed(h, "6.2")
    rows = store.timeline(h.run_id)
    assert [row["step"] for row in rows] == ["1", "2", "6.2", "6.1"]
    assert [row["operation_tool"] for row in rows] == [None, "pay", "mail", "ship"]
    assert [row["operation_status"] for row in rows] == [None, *["succeeded"] * 3]
    assert [row["step"] for row in store.timeline(h.run_id, effect="write")] == ["2", "6.2"]
    assert [row["step"] for row in store.timeline(h.run_id, effect="read")] == ["6.1"]


def test_a_long_timeline_is_read_in_pages_in_both_directions(store: Store) -> None:
    h = held(store)
    steps = [str(n) for n in range(1, 61)]
    for step in steps:
        store.do(RecordStep(**h.by, step=step, name="think"))
    assert [row["step"] for row in store.timeline(h.run_id)] == steps[:PAGE]
    for size in (1, 7, 60):
        there: list[Row] = []
        while rows := store.timeline(h.run_id, after=there[-1]["first_seq"] if there else 0, limit=size):
            assert len(rows) <= size
            there += rows
        assert [row["step"] for row in there] == steps
        back: list[Row] = []
        while rows := store.timeline(h.run_id, before=back[0]["first_seq"] if back else 10**9, limit=size):
            assert len(rows) <= size
            back = rows + back
        assert [row["step"] for row in back] == steps


@pytest.fixture
def eventful(opened: tuple[Store, Clock]) -> Held:
    """A run in which most things that can become of a step became of one."""
    store, clock = opened
    h = held(store)
    store.do(RecordStep(**h.by, step="1", step_kind="decide", name="How_much"))
    write(h, "2", tool="pay", description="pay 50% of it")
    intend(h, "3", tool="mail")
    said: dict[str, Any] = {"error_class": "Rejected", "error": "No such Mailbox"}
    store.do(Settle(**h.by, step="3", outcome=OperationStatus.FAILED, answer=Answer.REJECTED, **said))
    write(h, "4", tool="ship", effect=Effect.READ)
    ask(h, "5", expires_at=clock.now + HOUR, tool="pay")
    store.do(Refuse(actor=ANN, run_id=h.run_id, step="5", reason="too much"))
    lose_track(h, "6", tool="pay_back")
    return h


FILTERS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["1", "2", "3", "4", "5", "6"]),
    ({"effect": "write"}, ["2", "3", "5", "6"]),
    ({"effect": "read"}, ["4"]),
    ({"faults": True}, ["3", "5", "6"]),
    ({"faults": True, "effect": "read"}, []),
    ({"text": "PAY"}, ["2", "5", "6"]),
    ({"text": "pay", "faults": True}, ["5", "6"]),
    ({"text": "_"}, ["1", "6"]),
    ({"text": "50%"}, ["2"]),
    ({"text": "%"}, ["2"]),
    ({"text": "mailbox"}, ["3"]),
    ({"text": "\\"}, []),
    ({"text": "'; DROP TABLE steps"}, []),
    ({"text": "a\x00b"}, []),
    ({"text": ""}, ["1", "2", "3", "4", "5", "6"]),
]


@pytest.mark.parametrize(("where", "expected"), FILTERS, ids=[str(where) for where, _ in FILTERS])
def test_steps_are_filtered_counted_and_found_by_number(
    eventful: Held, where: dict[str, Any], expected: list[str]
) -> None:
    store, run_id = eventful.store, eventful.run_id
    assert [row["step"] for row in store.timeline(run_id, **where)] == expected
    assert [row["step"] for row in store.timeline(run_id, before=10**9, **where)] == expected
    assert store.count_steps(run_id, **where) == len(expected)
    for n in range(len(expected) + 2):
        page = store.timeline(run_id, offset=n, limit=2, **where)
        assert [row["step"] for row in page] == expected[n : n + 2]
        assert all("operation_status" in row for row in page)
    for step in ("1", "2", "3", "4", "5", "6", "7", "\x00"):
        at = expected.index(step) if step in expected else None
        assert store.step_offset(run_id, step, **where) == at


def test_a_suspected_duplicate_is_a_fault(store: Store) -> None:
    h = held(store)
    write(h, "1")
    write(h, "2")
    late = AppendLateEvidence(actor="worker:w", run_id=h.run_id, step="1", data={}, duplicate_suspected=True)
    store.do(late)
    assert [row["step"] for row in store.timeline(h.run_id, faults=True)] == ["1"]


def test_a_page_has_one_beginning(eventful: Held) -> None:
    both: list[dict[str, Any]] = [{"after": 3}, {"before": 3}]
    for more in both:
        with pytest.raises(ValueError, match="not two of these"):
            eventful.store.timeline(eventful.run_id, offset=1, **more)


def test_steps_are_skipped_in_an_index_that_has_all_it_takes(tmp_path: Path) -> None:
    """So a page of 100,000 steps is a page, wherever it begins."""
    store, _ = open_with_clock(str(tmp_path / "walkback.db"))
    with store:
        h = held(store)
        write(h, "1")
        plans = [
            *plans_of(store, lambda: store.timeline(h.run_id, offset=1)),
            *plans_of(store, lambda: store.count_steps(h.run_id)),
        ]
        of_steps = [plan for plan in plans if "steps" in plan]
        assert of_steps == ["SEARCH steps USING COVERING INDEX ix_steps_order (run_no=?)"] * 2


def test_many_operations_are_read_at_once_in_the_order_asked(store: Store) -> None:
    h = held(store)
    write(h, "1")
    start(store, "r2")
    (claimed,) = store.claim("w", {"a": ["1"]})
    assert claimed.run is not None
    other = Held(store, "r2", "w", claimed.run["fence"])
    park_unknown(other, "1")
    places = [("r2", "1"), ("nobody", "1"), ("r1", "9"), ("r1", "1"), ("r2", "1"), ("r1", "\x00")]
    found = store.operations_of(places)
    assert [(row["run_id"], row["step"], row["status"]) for row in found] == [
        ("r2", "1", "unknown"),
        ("r1", "1", "succeeded"),
    ]
    assert [(row["run_status"], row["run_why"], row["agent"]) for row in found] == [
        ("needs_operator", "unknown", "a"),
        ("running", None, "a"),
    ]
    assert store.operations_of([]) == []
    assert len(store.operations_of([("r1", str(n)) for n in range(MAX_PAGE)])) == 1
    with pytest.raises(ValueError, match="at most 1000"):
        store.operations_of([("r1", str(n)) for n in range(MAX_PAGE + 1)])


def test_batches_come_open_ones_first_and_newest_first(store: Store) -> None:
    h = held(store)
    park_unknown(h, "1")
    numbers = []
    for n in range(4):
        store.do(OpenBatch(actor=ANN, action="retry", members=[(h.run_id, "1")], reason=f"no. {n}"))
        numbers.append(store.batches()[0]["batch_no"])
    for batch_no in (numbers[0], numbers[3]):
        store.do(StopBatch(actor=ANN, batch_no=batch_no, reason="no"))
    found = store.batches()
    assert [(row["batch_no"], row["status"]) for row in found] == [
        (numbers[2], "open"),
        (numbers[1], "open"),
        (numbers[3], "stopped"),
        (numbers[0], "stopped"),
    ]
    assert [row["batch_no"] for row in store.batches(limit=1)] == [numbers[2]]


def test_an_operation_comes_with_all_that_is_known_about_it(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    h = held(store)
    ask(h, "3", expires_at=clock.now + HOUR, description="pay Ann")
    write(h, "4", tool="other")
    store.do(Approve(actor=BOB, run_id=h.run_id, step="3", digest=DIGEST, regret=0))
    intend(h, "3", digest=DIGEST)
    store.do(EndAttempt(**h.by, step="3", answer=Answer.AMBIGUOUS, error_class="Timeout", error="no answer"))
    store.do(StartAttempt(**h.by, step="3", worker="w"))
    store.do(EndAttempt(**h.by, step="3", answer=Answer.NONE))
    store.do(RecordVerification(**h.by, step="3", evidence=Evidence.CANNOT_TELL))
    store.do(
        RecordRecovery(
            **h.by, step="3", attempted="yes", acknowledged="no", proven="no", retry_safe="no", verdict="unknown"
        )
    )
    store.do(Settle(**h.by, step="3", outcome=OperationStatus.UNKNOWN, error_class="Timeout"))
    store.do(NeedOperator(**h.by, why=Why.UNKNOWN, detail="no answer", step="3"))
    store.do(AddNote(actor=ANN, run_id=h.run_id, step="3", reason="I asked the bank"))
    store.do(DecideRetry(actor=ANN, run_id=h.run_id, step="3", reason="the bank says no"))

    found = store.operation(h.run_id, "3")
    assert found.run["run_id"] == h.run_id
    assert (found.operation["status"], found.operation["description"]) == ("unknown", "pay Ann")
    assert [(a["n"], a["answer"]) for a in found.attempts] == [(1, "ambiguous"), (2, "none")]
    assert [(a["n"], a["status"], a["decided_by"]) for a in found.approvals] == [(1, "consumed", BOB)]
    assert [(d["action"], d["status"], d["by"]) for d in found.decisions] == [
        ("approve", "carried_out", BOB),
        ("retry", "waiting", ANN),
    ]
    assert [e.kind for e in found.events] == [
        "approval_asked", "approval_given", "intent", "tool_result", "attempt", "tool_result", "verification",
        "recovery", "outcome", "needs_operator", "operator_action", "operator_action",
    ]  # fmt: skip
    assert all(e.step == "3" and e.run_id == h.run_id for e in found.events)


def test_of_an_operation_with_very_many_events_the_newest_page_is_shown(store: Store) -> None:
    h = held(store)
    intend(h, "1")
    for n in range(PAGE + 10):
        store.do(AppendLateEvidence(actor="worker:old", run_id=h.run_id, step="1", data={"n": n}))
    events = store.operation(h.run_id, "1").events
    assert [e.data["n"] for e in events] == list(range(10, PAGE + 10))


def test_what_is_not_there_is_said_to_be_not_there(store: Store) -> None:
    h = held(store)
    store.do(RecordStep(**h.by, step="1", name="think"))
    for question in (store.run, store.timeline, store.events):
        with pytest.raises(NotFound, match="no run 'nobody'"):
            question("nobody")
    with pytest.raises(NotFound, match="no run"):
        store.operation("nobody", "1")
    with pytest.raises(NotFound, match="no operation at step 1"):
        store.operation(h.run_id, "1")
    with pytest.raises(NotFound, match="no batch 7"):
        store.batch(7)


def test_signals_wait_in_the_order_in_which_they_came(store: Store) -> None:
    held(store, "r")
    for signal_id, name in (("z", "go"), ("a", "go"), ("b", "stop")):
        store.do(SendSignal(actor=ANN, run_id="r", signal_id=signal_id, name=name))
    assert [s["signal_id"] for s in store.waiting_signals("r", "go")] == ["z", "a"]


# --- events ------------------------------------------------------------------------------------------------------


def test_events_of_a_run_come_in_order_and_in_pages(store: Store) -> None:
    h = held(store)
    for n in range(20):
        store.do(RecordStep(**h.by, step=str(n), name="think"))
    whole = store.events(h.run_id)
    assert [e.seq for e in whole] == list(range(1, 23))
    seen: list[Event] = []
    while page := store.events(h.run_id, after=seen[-1].seq if seen else 0, limit=7):
        seen += page
    assert seen == whole
    assert [e.seq for e in store.events(h.run_id, before=23, limit=3)] == [20, 21, 22]
    assert [e.seq for e in store.events(h.run_id, before=3)] == [1, 2]


def test_the_stores_own_log_has_no_events_of_runs(store: Store) -> None:
    begun = store.events(None)[-1].seq
    held(store)
    store.do(Freeze(actor=ANN, scope=FreezeScope.TOOL, name="pay", reason="outage"))
    assert {e.run_id for e in store.events(None)} == {STORE}
    assert [(e.run_id, e.kind) for e in store.events(None, after=begun)] == [
        (STORE, "store"),
        (STORE, "operator_action"),
    ]


def test_the_events_of_a_pruned_run_are_still_its_own(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    h = held(store, "gone")
    write(h, "1")
    store.do(AddNote(actor=ANN, run_id="gone", reason="looked at it"))
    finish(h)
    before = store.events("gone")
    clock.pass_(HOUR)
    assert prune(store, clock.now, ANN).runs == 1
    with pytest.raises(NotFound):
        store.run("gone")
    after = store.events("gone")
    assert [(e.run_id, e.seq, e.kind, e.hash) for e in after] == [(e.run_id, e.seq, e.kind, e.hash) for e in before]
    assert any(e.body is None for e in after)
    assert [(e.run_id, e.data["reason"]) for e in store.people_since(0) if e.data.get("action") == "note"] == [
        ("gone", "looked at it")
    ]
    assert {e.run_id for e in store.events_since(Cursor(), limit=MAX_PAGE)[0]} == {"gone", STORE}


def drain(store: Store, cursor: Cursor, size: int = 7) -> tuple[list[Event], Cursor]:
    seen: list[Event] = []
    while True:
        page, cursor = store.events_since(cursor, limit=size)
        assert len(page) <= size
        if not page:
            return seen, cursor
        seen += page


def test_everyones_events_come_once_each(store: Store) -> None:
    h = held(store, "r1")
    write(h, "1")
    first, cursor = drain(store, Cursor())
    assert {e.run_id for e in first} == {STORE, "r1"}
    assert drain(store, cursor) == ([], cursor)
    start(store, "r2")
    second, _ = drain(store, cursor)
    assert [(e.run_id, e.seq) for e in second] == [("r2", 1)]
    whole, _ = drain(store, Cursor(), size=1000)
    assert [(e.run_id, e.seq) for e in whole] == [(e.run_id, e.seq) for e in first + second]


def test_the_events_of_a_run_keep_their_order_among_everyones(store: Store) -> None:
    for n in range(5):
        h = held(store, f"r{n}", f"w{n}")
        write(h, "1")
    whole, _ = drain(store, Cursor())
    for run_id in {e.run_id for e in whole}:
        seqs = [e.seq for e in whole if e.run_id == run_id]
        assert seqs == sorted(seqs)


def test_an_event_that_commits_late_with_a_low_position_is_not_missed(pg_url: str) -> None:
    """Positions are given before commits happen: the transaction that got the lower one may end last."""
    store, _ = open_with_clock(pg_url)
    with store, psycopg.connect(pg_url) as slow:
        start(store, "r0")
        _, cursor = drain(store, Cursor())
        run_no = store.run("r0")["run_no"]
        # Another writer, by hand: it appends, and stays open while others commit behind it.
        slow.execute(
            "INSERT INTO events (run_no, seq, at, kind, actor, hash, body) SELECT run_no, 99, at, kind, 'slow', hash, "
            "body FROM events WHERE run_no = %s AND seq = 1",
            [run_no],
        )
        for n in range(1, 4):
            start(store, f"r{n}")
        page, cursor = drain(store, cursor)
        assert page == []  # held back, rather than shown in an order that would hide the slow one
        slow.commit()
        page, cursor = drain(store, cursor, size=1)
        assert [e.actor for e in page] == ["slow", ANN, ANN, ANN]
        assert page[0].pos < page[1].pos
        start(store, "r4")
        page, _ = drain(store, cursor)
        assert [e.run_id for e in page] == ["r4"]


def test_a_transaction_with_a_high_number_and_a_low_position_is_not_missed(pg_url: str) -> None:
    """The order is by transaction: one that began earlier comes first, wherever its events are."""
    store, _ = open_with_clock(pg_url)
    insert = (
        "INSERT INTO events (run_no, seq, at, kind, actor, hash, body) SELECT run_no, %s, at, kind, %s, hash, body "
        "FROM events WHERE run_no = 1 AND seq = 1"
    )
    with store, psycopg.connect(pg_url) as early, psycopg.connect(pg_url) as late:
        start(store, "r0")
        _, cursor = drain(store, Cursor())
        early.execute("SELECT pg_current_xact_id()")
        late.execute(insert, [50, "late"])
        late.commit()
        page, cursor = drain(store, cursor)
        assert page == []
        early.execute(insert, [51, "early"])
        early.commit()
        page, cursor = drain(store, cursor)
        assert [(e.actor, e.seq) for e in page] == [("early", 51), ("late", 50)]
        assert drain(store, cursor) == ([], cursor)


def test_a_reader_behind_concurrent_writers_sees_every_event_once(pg_url: str) -> None:
    store, _ = open_with_clock(pg_url)
    writers = [open_store(pg_url) for _ in range(3)]
    seen: list[Event] = []
    cursor = Cursor()
    with store:
        for n in range(12):
            for i, writer in enumerate(writers):
                start(writer, f"r{i}-{n}")
            page, cursor = drain(store, cursor, size=2)
            seen += page
        for writer in writers:
            writer.close()
        page, cursor = drain(store, cursor)
        seen += page
    of_runs = [e.run_id for e in seen if e.run_id != STORE]
    assert sorted(of_runs) == sorted(f"r{i}-{n}" for i in range(3) for n in range(12))


def test_a_new_reader_of_an_adopted_copy_sees_what_was_and_what_is(store_url: str) -> None:
    store, _ = open_with_clock(store_url)
    with store:
        start(store, "before")
        with store.backend.engine.connect().execution_options(walkback_writes=True) as db, db.begin():
            db.execute(schema.store.update().values(home="elsewhere"))
    store, _ = open_with_clock(store_url)
    with store:
        adopt(store, ANN, "the original is gone")
        start(store, "after")
        seen, _ = drain(store, Cursor(), size=1)
        assert [e.run_id for e in seen] == [STORE, STORE, "before", STORE, "after"]


# --- people ------------------------------------------------------------------------------------------------------


def test_a_handover_tells_all_that_people_did_newest_first(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    h = held(store)
    store.do(AddNote(actor=BOB, run_id=h.run_id, reason="before my shift"))
    clock.pass_(HOUR)
    since = clock.now
    ask(h, "1")
    store.do(Approve(actor=ANN, run_id=h.run_id, step="1", digest=DIGEST))
    ask(h, "2")
    store.do(Refuse(actor=ANN, run_id=h.run_id, step="2", reason="too much"))
    clock.pass_(MINUTE)
    store.do(AddNote(actor=BOB, run_id=h.run_id, reason="fine"))
    store.do(Freeze(actor=ANN, scope=FreezeScope.EVERYTHING, reason="outage"))
    told = store.people_since(since)
    assert [(e.run_id, e.kind, e.actor) for e in told] == [
        (STORE, "operator_action", ANN),
        (h.run_id, "operator_action", BOB),
        (h.run_id, "approval_refused", ANN),
        (h.run_id, "approval_given", ANN),
    ]
    pages: list[Event] = []
    before = None
    while page := store.people_since(since, limit=1, before=before):
        pages += page
        before = (page[-1].at, page[-1].pos)
    assert pages == told


def test_waiting_decisions_come_with_the_most_urgent_first(opened: tuple[Store, Clock]) -> None:
    store, _ = opened
    register(store)
    for n, regret in enumerate((30, 10, 20)):
        start(store, f"r{n}")
        (claimed,) = store.claim("w", {"a": ["1"]})
        assert claimed.run is not None
        park_unknown(Held(store, f"r{n}", "w", claimed.run["fence"]), "1")
        store.do(DecideRetry(actor=ANN, run_id=f"r{n}", step="1", reason="again", regret=regret * SECOND))
    assert ids(store.waiting_decisions()) == ["r1", "r2", "r0"]
    assert ids(store.waiting_decisions(limit=1)) == ["r1"]


def test_workers_alive_come_first(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    for name in ("old", "lost", "stopped", "new"):
        register(store, name, ("a", "b"))
        clock.pass_(SECOND)
    store.do(LoseWorker(actor="system", worker="lost", beat=0, reason="dead"))
    store.do(StopWorker(actor="worker:stopped", worker="stopped"))
    rows = store.workers()
    assert [row["worker"] for row in rows] == ["new", "old", "lost", "stopped"]
    assert rows[0]["agents"] == {"a": ["1"], "b": ["1"]}


def test_how_many_runs_each_worker_holds(opened: tuple[Store, Clock]) -> None:
    store, _ = opened
    held(store, "r1", worker="busy")
    start(store, "r2")
    store.claim("busy", {"a": ["1"]})
    register(store, "idle")
    assert store.holding() == {"busy": 2}


def test_a_step_comes_with_the_snapshots_around_it(opened: tuple[Store, Clock]) -> None:
    store, _ = opened
    h = held(store)
    write(h, "1", before={"n": 0}, after={"n": 1})
    write(h, "2", before={"n": 1})  # leaves the state as it was
    intend(h, "3", state={"n": 1})
    first, run = store.step(h.run_id, "1")
    assert (store.state(h.run_id, first["before"]), store.state(h.run_id, first["after"])) == ({"n": 0}, {"n": 1})
    assert run["run_id"] == h.run_id
    second, _ = store.step(h.run_id, "2")
    assert second["before"] == second["after"] == first["after"]
    newest, _ = store.step(h.run_id, "3")  # under way: what is known now
    assert store.state(h.run_id, newest["after"]) == {"n": 1}
    with pytest.raises(NotFound, match="no step '9'"):
        store.step(h.run_id, "9")


def test_only_freezes_in_force_are_told(store: Store) -> None:
    first = store.do(Freeze(actor=ANN, scope=FreezeScope.TOOL, name="pay", reason="outage"))
    store.do(Freeze(actor=BOB, scope=FreezeScope.AGENT, name="a", reason="odd"))
    store.do(Unfreeze(actor=ANN, freeze_no=first.seq, reason="over"))
    assert [(f["scope"], f["name"], f["by"]) for f in store.freezes()] == [("agent", "a", BOB)]


def test_a_batch_comes_with_its_members_in_pages(store: Store) -> None:
    h = held(store)
    steps = [str(n) for n in range(1, 6)]
    for step in steps:
        lose_track(h, step)
    opened_batch = store.do(
        OpenBatch(actor=ANN, action="retry", members=[(h.run_id, step) for step in steps], reason="outage is over")
    )
    batch, members = store.batch(opened_batch.seq)
    assert (batch["total"], batch["status"], len(members)) == (5, "open", 5)
    seen: list[str] = []
    after = 0
    while True:
        _, members = store.batch(opened_batch.seq, limit=2, after=after)
        if not members:
            break
        seen += [m["step"] for m in members]
        after = members[-1]["n"]
    assert seen == steps


# --- no query loads more than a page -----------------------------------------------------------------------------


@contextmanager
def statements_of(store: Store) -> Iterator[list[str]]:
    seen: list[str] = []

    def remember(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    event.listen(store.backend.engine, "before_cursor_execute", remember)
    try:
        yield seen
    finally:
        event.remove(store.backend.engine, "before_cursor_execute", remember)


def questions(store: Store, now: int) -> dict[str, Callable[[], Any]]:
    """One way to ask each, with the largest page there can be."""
    most = 10**9
    return {
        "step": lambda: store.step("r0000", "1"),
        "holding": lambda: store.holding(),
        "run": lambda: store.run("r0000"),
        "runs": lambda: store.runs(RunFilter(agent_prefix=""), limit=most, after=(10**16, 0)),
        "count_runs": lambda: store.count_runs(RunFilter(tag="t", status=["running"])),
        "status_counts": store.status_counts,
        "timeline": lambda: store.timeline("r0000", limit=most),
        "timeline, by number": lambda: store.timeline("r0000", limit=most, offset=3),
        "timeline, of faults": lambda: store.timeline(
            "r0000", limit=most, offset=0, faults=True, text="no", effect="write"
        ),
        "count_steps": lambda: store.count_steps("r0000"),
        "count_steps, of faults": lambda: store.count_steps("r0000", faults=True),
        "step_offset": lambda: store.step_offset("r0000", "1", text="pay"),
        "operations_of": lambda: store.operations_of([("r0000", "1"), ("r0000", "2")]),
        "operation": lambda: store.operation("r0000", "1"),
        "waiting_signals": lambda: store.waiting_signals("r0000", "go"),
        "events": lambda: store.events("r0000", limit=most),
        "events_since": lambda: store.events_since(Cursor(), limit=most)[0],
        "people_since": lambda: store.people_since(0, limit=most),
        "workers": lambda: store.workers(limit=most),
        "freezes": store.freezes,
        "roles": store.roles,
        "role_of": lambda: store.role_of(ANN),
        "waiting_decisions": lambda: store.waiting_decisions(limit=most),
        "open_batches": lambda: store.open_batches(limit=most),
        "batches": lambda: store.batches(limit=most),
        "batch": lambda: store.batch(store.events(None, before=most, limit=1)[0].seq, limit=most)[1],
        "inbox": lambda: store.inbox(now, limit=most),
        "inbox_members": lambda: store.inbox_members(store.inbox(now, limit=1)[0], now, limit=most),
        "inbox_counts": lambda: store.inbox_counts(now),
        "held_up": lambda: store.held_up(most),
        "identity": lambda: store.identity("invoice/7"),
        "breakers": store.breakers,
        "worker": lambda: store.worker("w"),
        "next_wake": lambda: store.next_wake({"a": ["1"]}),
    }


def test_no_query_loads_more_than_a_page(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    register(store)
    count = MAX_PAGE + 20
    start(store, "r0000", tags=["t"])
    (claimed,) = store.claim("w", {"a": ["1"]})
    assert claimed.run is not None
    h = Held(store, "r0000", "w", claimed.run["fence"])
    for first in range(0, count, 170):
        store.commit([RecordStep(**h.by, step=f"s{n}", name="think") for n in range(first, min(first + 170, count))])
    lose_track(h, "1")
    store.do(NeedOperator(**h.by, why=Why.UNKNOWN, detail="?", step="1"))
    store.commit(
        [SendSignal(actor=ANN, run_id="r0000", signal_id=f"s{n}", name="go") for n in range(PAGE + 5)]
        + [AddNote(actor=ANN, run_id="r0000", reason="look") for _ in range(count)]
    )
    store.commit([StartRun(actor=ANN, run_id=f"r{n:04}", agent=f"a{n % 90}", tags=["t"]) for n in range(1, count)])
    store.commit(
        [
            RegisterWorker(
                actor=f"worker:w{n}", worker=f"w{n}", host="h", boot_id="b", pid=1, process_started="1", lease=MINUTE,
                agents={"nothing": ["1"]},
            )
            for n in range(count)
        ]
    )  # fmt: skip
    store.commit([Freeze(actor=ANN, scope=FreezeScope.TOOL, name=f"t{n}", reason="off") for n in range(count)])
    store.do(OpenBatch(actor=ANN, action="retry", members=[("r0000", "1")], reason="over"))
    clock.pass_(HOUR)
    asked = questions(store, clock.now)
    public = {name for name in dir(Queries) if not name.startswith("_")}
    assert {name.partition(",")[0] for name in asked} == public - {
        "time_limit",
        "history",
    }  # which is for a worker, who needs all of it
    for name, question in asked.items():
        with statements_of(store) as statements:
            answer = question()
        rows = getattr(answer, "rows", answer)
        size = len(rows) if isinstance(rows, list) else 1
        assert size <= MAX_PAGE, name
        if name in {"runs", "timeline", "events", "events_since", "people_since", "workers", "freezes"}:
            assert size == MAX_PAGE, name
        assert statements
        for statement in statements:
            if " FROM " in statement.replace("\n", " "):
                assert " LIMIT " in statement.replace("\n", " "), (name, statement)


# --- claims ------------------------------------------------------------------------------------------------------


def claim(store: Store, worker: str, agents: dict[str, list[str]], limit: int = 1, turn: int = 0) -> list[str]:
    def plan(work: Any) -> list[ClaimRun]:
        found = claiming.find(store.backend, agents, work.now, limit, turn=turn)
        return [ClaimRun(actor=f"worker:{worker}", run_id=run_id, worker=worker) for run_id in found]

    results = store.engine.plan_and_commit(plan)
    assert all(isinstance(result, Committed) for result in results), results
    return [result.run["run_id"] for result in results if isinstance(result, Committed) and result.run is not None]


def test_claims_are_fair_between_agents_and_oldest_first_within_one(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    register(store, "w", ("a", "b", "c"))
    for n in range(4):
        for agent in ("a", "a", "b"):
            start(store, f"{agent}{n}{len(store.runs(RunFilter(agent=agent, prefix=f'{agent}{n}')).rows)}", agent=agent)
            clock.pass_(1)
    agents = {"a": ["1"], "b": ["1"], "c": ["1"]}
    assert sorted(claim(store, "w", agents, 4)) == ["a00", "a01", "b00", "b10"]
    assert claim(store, "w", agents, 1, turn=0) == ["a10"]
    assert claim(store, "w", agents, 1, turn=1) == ["b20"]
    assert claim(store, "w", agents, 1, turn=2) == ["a11"]  # nothing to do for c: the next one's turn
    assert sorted(claim(store, "w", agents, 100, turn=3)) == ["a20", "a21", "a30", "a31", "b30"]
    assert claim(store, "w", agents, 1) == []


def test_only_versions_the_worker_has_are_claimed(opened: tuple[Store, Clock]) -> None:
    store, _ = opened
    register(store)
    for run_id, version in (("r1", "1"), ("r2", "2"), ("r3", "3"), ("r4", "2")):
        store.do(StartRun(actor=ANN, run_id=run_id, agent="a", version=version))
    store.do(StartRun(actor=ANN, run_id="other", agent="b", version="2"))
    assert claim(store, "w", {"a": ["2", "9"], "c": []}, 10) == ["r2", "r4"]
    assert claim(store, "w", {}, 10) == []
    assert claim(store, "w", {"a": []}, 10) == []
    assert claim(store, "w", {"a": ["1", "1"]}, 10) == ["r1"]
    assert claim(store, "w", {"a": ["3"]}, 0) == []


def test_a_waiting_run_is_claimed_when_its_time_has_come(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    h = held(store)
    store.do(ParkRun(**h.by, waits_for="time", wake_at=clock.now + MINUTE))
    clock.pass_(MINUTE - 1)
    assert claim(store, "w", {"a": ["1"]}) == []
    clock.pass_(1)
    assert claim(store, "w", {"a": ["1"]}) == [h.run_id]
    assert store.run(h.run_id)["status"] == RunStatus.RUNNING


def test_of_due_and_free_runs_whichever_could_be_taken_for_longest_goes_first(opened: tuple[Store, Clock]) -> None:
    store, clock = opened
    h = held(store, "sleeper")
    store.do(ParkRun(**h.by, waits_for="time", wake_at=clock.now + MINUTE))
    start(store, "early")
    clock.pass_(HOUR)
    start(store, "late")
    assert [claim(store, "w", {"a": ["1"]}) for _ in range(4)] == [["early"], ["sleeper"], ["late"], []]


@pytest.mark.parametrize("how", ["lost", "stopped"])
def test_what_a_dead_worker_holds_is_claimed_first(opened: tuple[Store, Clock], how: str) -> None:
    store, clock = opened
    register(store, "dead")
    register(store, "w")
    start(store, "older")
    start(store, "orphan")
    assert claim(store, "w", {"a": ["1"]}) == ["older"]
    assert claim(store, "dead", {"a": ["1"]}) == ["orphan"]
    store.do(RequestCancel(actor=ANN, run_id="older", reason="?"))
    start(store, "free")
    clock.pass_(HOUR)
    assert claim(store, "w", {"a": ["1"]}) == ["free"]  # the other one is held by a live worker
    start(store, "free again")
    if how == "lost":
        store.do(LoseWorker(actor="system", worker="dead", beat=0, reason="dead"))
    else:
        store.do(StopWorker(actor="worker:dead", worker="dead"))
    assert claim(store, "w", {"b": ["1"]}) == []
    assert claim(store, "w", {"a": ["1"]}) == ["orphan"]
    assert claim(store, "w", {"a": ["1"]}, 5) == ["free again"]


def test_two_claims_at_the_same_moment_take_different_runs(pg_url: str) -> None:
    """The second does not wait for the first, and finds what the first left."""
    first, _ = open_with_clock(pg_url)
    second, _ = open_with_clock(pg_url)
    with first, second:
        register(first, "w")
        for n in range(5):
            start(first, f"r{n}")
        first.backend.begin(True)
        second.backend.begin(True)
        ones = claiming.find(first.backend, {"a": ["1"]}, BEGINNING, 2)
        others = claiming.find(second.backend, {"a": ["1"]}, BEGINNING, 2)
        first.backend.rollback()
        second.backend.rollback()
    assert ones == ["r0", "r1"]
    assert others == ["r2", "r3"]


CLAIM_INDEXES = {"orphaned": "ix_runs_worker", "due": "ix_runs_wake", "free": "ix_runs_claimable"}


def test_claims_search_small_indexes_and_sort_nothing_large(tmp_path: Path) -> None:
    with open_store(tmp_path / "walkback.db") as store:
        asker = claiming._Asker(store.backend, 0)
        values = {"agent": "a", "version": "1", "worker": "w", "now": 0, "limit": 1}
        for kind, index in CLAIM_INDEXES.items():
            sql, given = asker._compiled(kind, claiming._QUERIES[kind], values)
            store.backend.begin(False)
            plan = [row[3] for row in store.backend.fetch([(f"EXPLAIN QUERY PLAN {sql}", given)])[0]]
            store.backend.rollback()
            assert len(plan) == 1 + (kind == "orphaned" and "TEMP B-TREE" in plan[-1]), plan
            assert f"USING INDEX {index} (" in plan[0], plan


# --- plans -------------------------------------------------------------------------------------------------------


def test_no_question_scans_the_runs_of_a_store_that_keeps_no_statistics(tmp_path: Path) -> None:
    """SQLite plans without knowing how much there is, so its plans on an empty store are those on a large one."""
    store, clock = open_with_clock(str(tmp_path / "walkback.db"))
    with store:
        h = held(store, "r0000")
        lose_track(h, "1")
        store.do(NeedOperator(**h.by, why=Why.UNKNOWN, detail="?", step="1"))
        store.do(OpenBatch(actor=ANN, action="retry", members=[("r0000", "1")], reason="over"))
        asked: dict[str, Callable[[], Any]] = questions(store, clock.now)
        for where in (
            RunFilter(status=["failed"]), RunFilter(status=["failed", "paused"]), RunFilter(agent="a"),
            RunFilter(agent="a", status=["failed"]), RunFilter(agent_prefix="a"), RunFilter(tag="t"),
            RunFilter(tag="t", status=["failed"]), RunFilter(since=5, until=9), RunFilter(prefix="r"),
            RunFilter(prefix="r", status=["failed"]), RunFilter(fingerprint="f"),
        ):  # fmt: skip
            place = ("r",) if where.prefix else (7, 7)
            asked[f"runs {where}"] = partial(store.runs, where)
            asked[f"later runs {where}"] = partial(store.runs, where, after=place)
            asked[f"last runs {where}"] = partial(store.runs, where, last=True)
            asked[f"count {where}"] = partial(store.count_runs, where)
        for name, question in asked.items():
            for detail in plans_of(store, question):
                some = ("SCAN runs USING INDEX ix_runs_created", "SCAN runs USING INDEX ix_runs_held_up")
                whole = detail.startswith("SCAN runs") and detail not in some
                assert not whole, (name, detail)
                assert not detail.startswith(("SCAN events", "SCAN steps", "SCAN attempts")), (name, detail)
                assert detail != "SCAN operations", (name, detail)
                assert detail != "SCAN approvals", (name, detail)
        inbox = plans_of(store, asked["inbox"])
        assert sum("ix_runs_status" in detail for detail in inbox) == 1, inbox  # the runs that are parked
        assert {index for index in CLAIM_INDEXES.values() if not any(index in detail for detail in inbox)} == set()


def plans_of(store: Store, question: Callable[[], Any]) -> list[str]:
    asked: list[tuple[str, Any]] = []

    def remember(_c: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        asked.append((statement, values))

    event.listen(store.backend.engine, "before_cursor_execute", remember)
    try:
        question()
    finally:
        event.remove(store.backend.engine, "before_cursor_execute", remember)
    with store.backend.engine.connect() as connection:
        return [
            row[3]
            for statement, values in asked
            if statement.startswith(("SELECT", "WITH"))
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
        ]


# --- what goes wrong ---------------------------------------------------------------------------------------------


def test_a_file_that_was_removed_is_not_read_any_further(tmp_path: Path) -> None:
    path = tmp_path / "walkback.db"
    with open_store(path) as store:
        start(store, "r")
        path.rename(tmp_path / "elsewhere.db")
        for question in (lambda: store.run("r"), store.runs, lambda: store.inbox(0), store.status_counts):
            with pytest.raises(Unreachable, match="is gone"):
                question()
        assert not path.exists()  # asking did not bring it back, empty
        (tmp_path / "elsewhere.db").rename(path)
        assert store.run("r")["run_id"] == "r"


def test_a_file_that_was_replaced_is_not_taken_for_the_store(tmp_path: Path) -> None:
    path, other = tmp_path / "walkback.db", tmp_path / "other.db"
    open_store(other).close()
    with open_store(path) as store:
        start(store, "r")
        os.replace(other, path)
        with pytest.raises(Unreachable, match="replaced"):
            store.runs()


def test_a_lost_connection_is_replaced_before_the_next_question(pg_url: str) -> None:
    with open_store(pg_url) as store, psycopg.connect(pg_url, autocommit=True) as admin:
        start(store, "r")
        assert store.run("r")["run_id"] == "r"
        ended = admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid()"
        ).fetchall()
        assert len(ended) >= 2  # a writer, and at least one that reads
        assert store.run("r")["run_id"] == "r"
        assert ids(store.runs().rows) == ["r"]


def test_a_connection_lost_in_the_middle_of_an_answer_is_told_as_such(pg_url: str) -> None:
    with open_store(pg_url) as store, psycopg.connect(pg_url, autocommit=True) as admin:

        def cut_off() -> None:
            with store._reading() as moment:
                (pid,) = moment.values(text("SELECT pg_backend_pid()"))
                admin.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
                moment.values(text("SELECT 1"))

        with pytest.raises(Unreachable):
            cut_off()
        assert store.runs().rows == []


def test_a_server_that_is_gone_is_unreachable_until_it_is_back(pg_proxy: CuttingProxy) -> None:
    with open_store(pg_proxy.url, wait=1.0) as store:
        start(store, "r")
        assert store.run("r")["run_id"] == "r"
        pg_proxy.refuse(True)
        pg_proxy.cut_all()
        for question in (lambda: store.run("r"), store.runs, lambda: store.inbox(0), store.status_counts):
            with pytest.raises(Unreachable):
                question()
        pg_proxy.refuse(False)
        assert store.run("r")["run_id"] == "r"


ENDLESS = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
    "postgresql": "SELECT pg_sleep(60)",
}


def test_a_question_that_takes_too_long_is_given_up(store: Store) -> None:
    start(store, "r")
    store.time_limit = 0.05
    with pytest.raises(TooSlow, match="Runs are not affected"), store._reading() as moment:
        moment.values(text(ENDLESS[store.backend.name]))
    store.time_limit = 2.0
    assert store.run("r")["run_id"] == "r"
    start(store, "r2")  # nor is the writer's connection affected
    assert store.count_runs().n == 2


def test_a_patient_question_is_not_given_up(store: Store) -> None:
    """As in housekeeping; also on a connection that was used impatiently before."""
    store.time_limit = 0.0
    with pytest.raises(TooSlow), store._reading() as moment:
        moment.values(text(ENDLESS[store.backend.name]))
    up_to = "SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 300000"
    long = {
        "sqlite": f"WITH RECURSIVE n(i) AS ({up_to}) SELECT max(i) AS i FROM n",
        "postgresql": "SELECT 300000 AS i FROM pg_sleep(0.05)",
    }
    assert store._rows(text(long[store.backend.name])) == [{"i": 300_000}]


def test_what_goes_wrong_in_the_query_itself_is_not_dressed_up(store: Store) -> None:
    with pytest.raises(Exception, match="no_such_table") as raised:
        store._rows(text("SELECT * FROM no_such_table"))
    assert not isinstance(raised.value, StoreError)


def test_many_questions_about_one_operation_are_answered_as_of_one_moment(opened: tuple[Store, Clock]) -> None:
    store, _ = opened
    h = held(store)
    intend(h, "1")
    with store._reading() as moment:
        o = schema.operations
        before = moment.rows(select(o))
        succeed(h, "1")
        assert moment.rows(select(o)) == before
    assert store.operation(h.run_id, "1").operation["status"] == "succeeded"
