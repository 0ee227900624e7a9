"""fsck: the log is folded again, and whatever does not agree with it is found.

The hand that edits here is that of someone who may write to the database: it first takes away the triggers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import (
    Column,
    Connection,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    delete,
    func,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.exc import DBAPIError

from tests.store.driver import (
    ANN,
    BOB,
    DIGEST,
    MINUTE,
    SECOND,
    Clock,
    ask,
    claim,
    finish,
    held,
    intend,
    open_with_clock,
    park_unknown,
    register,
    start,
    write,
)
from tests.store.recipes import claim_of, pays
from tests.support.people import open_store
from tests.support.postgres import Postgres
from walkback_store import schema
from walkback_store.errors import NotFound
from walkback_store.frames import body_digest, pack_body, pruned_body, unpack_body
from walkback_store.fsck import EVENTS_AT_ONCE, Problem, fsck
from walkback_store.housekeeping import adopt, prune
from walkback_store.log import TABLES, chain_hash
from walkback_store.machine.operations import AppendLateEvidence, EndAttempt
from walkback_store.machine.people import REGRET, AddNote, Approve, DecideRetry
from walkback_store.machine.runs import DeclarePlan, NeedOperator, RecordStep, SendSignal
from walkback_store.machine.store_wide import Freeze, OpenBatch, ReleaseMember, ServiceFailed, TakeToken
from walkback_store.store import Store
from walkback_store.values import encode
from walkback_store.words import Answer, FreezeScope, Why

LONG = [f"line {i}: {i * 7919 % 1009}" for i in range(50)]
"""Enough state for a snapshot to be worth storing against the one before it."""


def make_rich(store: Store, clock: Clock) -> None:
    """At least a row in every table, and a run that was pruned."""
    h = held(store, "gone")
    store.do(claim_of(h, "invoice/7"))
    write(h, "1", before={"n": 1}, after={"n": 2}, **pays("invoice/7"))
    store.do(RecordStep(**h.by, step="2", name="look", step_kind="observe", data={"seen": 1}))
    clock.pass_(MINUTE)
    finish(h)
    clock.pass_(MINUTE)
    assert prune(store, clock.now, ANN).runs == 1

    start(store, "main", tags=["red", "blue"])
    h = claim(store)
    store.do(DeclarePlan(**h.by, steps=["one", "two"]))
    for i in range(1, 20):
        write(h, str(i), before={"i": i, "log": LONG}, after={"i": i, "log": LONG, "done": True})
        clock.pass_(SECOND)
    intend(h, "20", stake_value=12.5, stake="$12.50", service="bank")
    store.do(EndAttempt(**h.by, step="20", answer=Answer.AMBIGUOUS, error_class="Timeout", error="no answer"))
    store.do(AppendLateEvidence(actor="worker:old", run_id="main", step="19", data={}, duplicate_suspected=True))
    store.do(SendSignal(actor="system", run_id="main", signal_id="s1", name="paid"))
    ask(h, "21", expires_at=clock.now + MINUTE)
    store.do(Approve(actor=ANN, run_id="main", step="21", digest=DIGEST, reason="fine"))
    store.do(AddNote(actor=BOB, run_id="main", reason="mine", owner="bob"))
    store.do(AddNote(actor=BOB, run_id="main", reason="only words"))

    start(store, "stuck")
    h = claim(store)
    park_unknown(h, "1")
    batch = store.do(OpenBatch(actor=ANN, action="retry", members=[("stuck", "1")], reason="all the same")).seq
    clock.pass_(REGRET)
    store.do(ReleaseMember(actor="system", batch_no=batch))
    store.do(DecideRetry(actor=ANN, run_id="stuck", step="1", reason="try again", batch=batch))
    store.do(Freeze(actor=ANN, scope=FreezeScope.TOOL, name="mail", reason="wrong template"))
    store.do(ServiceFailed(actor="system", service="bank/eu", reason="503", threshold=1, cooldown=MINUTE))
    store.do(TakeToken(actor="system", tool="pay", capacity=3, per_second=0.7))
    clock.pass_(SECOND)
    store.do(TakeToken(actor="system", tool="pay", capacity=3, per_second=0.7))
    register(store, "w2")


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def rich(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One store for all tests here; each puts back what it changed, and sees that it did."""
    if request.param == "sqlite":
        with _rich(f"sqlite:///{tmp_path_factory.mktemp('rich') / 'walkback.db'}") as store:
            yield store
    else:
        server: Postgres = request.getfixturevalue("postgres")
        with server.fresh_database() as url, _rich(url) as store:
            yield store


@contextmanager
def _rich(url: str) -> Iterator[Store]:
    store, clock = open_with_clock(url)
    with store:
        make_rich(store, clock)
        with by_hand(store) as db:
            drop_triggers(db)
        yield store


@contextmanager
def by_hand(store: Store) -> Iterator[Connection]:
    with store.backend.engine.connect().execution_options(walkback_writes=True) as db, db.begin():
        yield db


def drop_triggers(db: Connection) -> None:
    if db.dialect.name == "sqlite":
        db.execute(text("DROP TRIGGER events_no_delete"))
        db.execute(text("DROP TRIGGER events_no_update"))
    else:
        db.execute(text("ALTER TABLE events DISABLE TRIGGER USER"))


@contextmanager
def tampered(store: Store, *names: str) -> Iterator[Connection]:
    """Change these tables; afterwards they are as before."""
    with by_hand(store) as db:
        meta = MetaData()
        tables = [Table(name, meta, autoload_with=db) for name in names]  # with columns that only one database has
        if db.dialect.name == "sqlite":
            tables.append(Table("sqlite_sequence", meta, Column("name", Text), Column("seq", Integer)))
        saved = [[dict(row) for row in db.execute(select(t)).mappings()] for t in tables]
    try:
        with by_hand(store) as db:
            yield db
    finally:
        with by_hand(store) as db:
            for t, rows in zip(tables, saved, strict=True):
                db.execute(delete(t))
                if rows:
                    db.execute(insert(t), rows)
        assert fsck(store, deep=True).problems == []


def problems(store: Store, *, deep: bool = False) -> list[Problem]:
    return fsck(store, deep=deep).problems


def run_no(db: Connection, run_id: str) -> int:
    for t in (schema.runs, schema.tombstones):
        found = db.execute(select(t.c.run_no).where(t.c.run_id == run_id)).scalar()
        if found is not None:
            return int(found)
    return schema.STORE_LOG


def other_than(value: Any, column: Any) -> Any:
    """Something else that fits the column."""
    if isinstance(column.type, LargeBinary):
        return b"planted" if value is None else bytes(b ^ 1 for b in value)
    if isinstance(column.type, Integer):
        return 7 if value is None else value + 1000
    if isinstance(column.type, Float):
        return 7.5 if value is None else value + 1
    return "x" if value is None else f"{value}x"


def pick(db: Connection, t: Table) -> dict[str, Any]:
    """The last row, which is not the first one anybody would look at."""
    rows = db.execute(select(t).order_by(*t.primary_key.columns)).mappings().all()
    return dict(rows[-1])


def where(t: Table, row: dict[str, Any]) -> Any:
    return [c == row[c.name] for c in t.primary_key.columns]


FOLDED = [
    (name, column.name)
    for name, t in TABLES.items()
    for column in t.columns
    if (name, column.name) not in schema.NOT_FOLDED
]
BESIDE = [("run_tags", c.name) for c in schema.run_tags.columns]
SNAPSHOT_COLUMNS = [c.name for c in schema.snapshots.columns]
TOMBSTONE_COLUMNS = [c.name for c in schema.tombstones.columns if c.name != "pruned_at"]
EVENT_COLUMNS = [c.name for c in schema.events.columns]


# --- a clean store -----------------------------------------------------------------------------------------------


def test_a_rich_store_is_clean_and_everything_in_it_was_looked_at(rich: Store) -> None:
    report = fsck(rich, deep=True)
    assert report.problems == []
    assert report.clean
    with rich.backend.engine.connect() as db:
        for t in (*TABLES.values(), schema.run_tags, schema.tombstones, schema.snapshots):
            assert db.execute(select(func.count()).select_from(t)).scalar_one() > 0, t.name
        assert report.events == db.execute(select(func.count()).select_from(schema.events)).scalar_one()
        assert report.snapshots == db.execute(select(func.count()).select_from(schema.snapshots)).scalar_one()
    assert report.runs == 3


def test_an_audit_of_one_run_looks_at_that_run_only(rich: Store) -> None:
    whole = fsck(rich).events
    for run_id in ("main", "stuck", "gone"):
        report = fsck(rich, run_id, deep=True)
        assert (report.runs, report.problems) == (1, [])
        assert 0 < report.events < whole
    with tampered(rich, "operations") as db:
        db.execute(update(schema.operations).where(schema.operations.c.run_no == run_no(db, "main")).values(tool="rm"))
        db.commit()
        assert fsck(rich, "stuck").clean
        assert {p.run_id for p in fsck(rich, "main").problems} == {"main"}
    with pytest.raises(NotFound):
        fsck(rich, "no such run")


def test_progress_is_told_run_by_run(rich: Store) -> None:
    told: list[int] = []
    fsck(rich, progress=told.append)
    assert told == [1, 2, 3]


def test_an_agents_own_words_are_not_taken_for_a_snapshot(store_url: str) -> None:
    with open_store(store_url) as store:
        h = held(store)
        for i, said in enumerate(("hello", "7:" + "0" * 64, "x:y", "")):
            store.do(RecordStep(**h.by, step=str(i), name="look", data={"snapshot": said}))
        store.do(NeedOperator(**h.by, why=Why.DRIFT, detail="odd", data={"snapshot": "1:2"}))
        assert problems(store, deep=True) == []


def test_a_run_of_several_pages_is_checked_to_its_end(store_url: str) -> None:
    with open_store(store_url) as store:
        start(store)
        store.commit([AddNote(actor=ANN, run_id="r1", reason=str(i)) for i in range(2 * EVENTS_AT_ONCE)])
        assert fsck(store, "r1").events == 2 * EVENTS_AT_ONCE + 1
        with by_hand(store) as db:
            drop_triggers(db)
            e = schema.events
            db.execute(delete(e).where(e.c.run_no == run_no(db, "r1"), e.c.seq == 2 * EVENTS_AT_ONCE))
        assert "is missing" in str(problems(store)[0])


# --- projections -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("table", "column"), FOLDED, ids=lambda v: str(v))
def test_a_projection_row_edited_by_hand_is_found(table: str, column: str, rich: Store) -> None:
    t = TABLES[table]
    with tampered(rich, table) as db:
        row = pick(db, t)
        db.execute(update(t).where(*where(t, row)).values({column: other_than(row[column], t.c[column])}))
        db.commit()
        assert problems(rich)


@pytest.mark.parametrize("table", TABLES)
def test_a_projection_row_deleted_by_hand_is_found(table: str, rich: Store) -> None:
    t = TABLES[table]
    with tampered(rich, table) as db:
        db.execute(delete(t).where(*where(t, pick(db, t))))
        db.commit()
        assert problems(rich)


@pytest.mark.parametrize("table", TABLES)
def test_a_projection_row_added_by_hand_is_found(table: str, rich: Store) -> None:
    t = TABLES[table]
    with tampered(rich, table) as db:
        key = list(t.primary_key.columns)[-1]
        row = pick(db, t)
        added = row | {key.name: other_than(row[key.name], key)}
        if table == "runs":
            added["run_id"] = "planted"
        db.execute(insert(t).values(added))
        db.commit()
        assert problems(rich)


def test_a_column_set_to_nothing_by_hand_is_found(rich: Store) -> None:
    with tampered(rich, "runs") as db:
        db.execute(update(schema.runs).where(schema.runs.c.run_id == "main").values(plan=None))
        db.commit()
        (problem,) = problems(rich)
        assert problem.run_id == "main"
        assert "plan is None, but the log says" in problem.what


def test_a_heartbeat_is_not_history(rich: Store) -> None:
    rich.beat("w")
    assert problems(rich) == []


@pytest.mark.parametrize(("table", "column"), BESIDE)
def test_tags_changed_by_hand_are_found(table: str, column: str, rich: Store) -> None:
    t = schema.run_tags
    with tampered(rich, table) as db:
        row = pick(db, t)
        db.execute(update(t).where(*where(t, row)).values({column: other_than(row[column], t.c[column])}))
        db.commit()
        assert problems(rich)


def test_a_tag_taken_away_or_added_by_hand_is_found(rich: Store) -> None:
    t = schema.run_tags
    with tampered(rich, "run_tags") as db:
        db.execute(delete(t).where(t.c.tag == "red"))
        db.commit()
        assert "its tags are" in str(problems(rich)[0])
    with tampered(rich, "run_tags") as db:
        db.execute(insert(t).values(pick(db, t) | {"tag": "green"}))
        db.commit()
        assert "its tags are" in str(problems(rich)[0])


# --- the store's own row -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["head_seq", "head_hash"])
def test_the_head_of_the_stores_log_edited_by_hand_is_found(column: str, rich: Store) -> None:
    with tampered(rich, "store") as db:
        row = pick(db, schema.store)
        db.execute(update(schema.store).values({column: other_than(row[column], schema.store.c[column])}))
        db.commit()
        assert {p.run_id for p in problems(rich)} == {"@store"}


def test_the_epoch_of_an_adopted_store_edited_by_hand_is_found(store_url: str) -> None:
    with open_store(store_url) as store:
        with by_hand(store) as db:
            db.execute(update(schema.store).values(home="elsewhere"))
        epoch = adopt(store, ANN, "the original is gone")
        assert problems(store) == []
        with by_hand(store) as db:
            db.execute(update(schema.store).values(epoch=epoch - 1))
        assert "epoch" in str(problems(store)[0])


# --- events ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", EVENT_COLUMNS)
def test_the_database_refuses_to_change_an_event(column: str, store_url: str) -> None:
    with open_store(store_url) as store:
        start(store)
        e = schema.events
        with by_hand(store) as db:
            row = pick(db, e)
        statement = update(e).where(e.c.pos == row["pos"]).values({column: other_than(row[column], e.c[column])})
        with pytest.raises(DBAPIError, match="append-only"), by_hand(store) as db:
            db.execute(statement)
        assert problems(store) == []


def test_the_database_refuses_to_delete_events_one_by_one_or_all_at_once(store_url: str) -> None:
    with open_store(store_url) as store:
        start(store)
        before = fsck(store).events
        e = schema.events
        statements = [delete(e), delete(e).where(e.c.seq == 1)]
        if store.backend.name == "postgresql":
            statements += [text("TRUNCATE events"), text("TRUNCATE events CASCADE")]  # type: ignore[list-item]
        for statement in statements:
            with pytest.raises(DBAPIError, match="append-only"), by_hand(store) as db:
                db.execute(statement)
        assert fsck(store).events == before


@pytest.mark.parametrize("same", [("pos",), ("run_no", "seq"), ("transition",)])
def test_sqlite_refuses_to_replace_an_event(same: tuple[str, ...], tmp_path: Path) -> None:
    with open_store(tmp_path / "walkback.db") as store:
        start(store)
        e = schema.events
        with by_hand(store) as db:
            row = pick(db, e)
        other = {"pos": 99, "run_no": 99, "seq": 99, "transition": b"another"}
        values = dict(row) | {name: value for name, value in other.items() if name not in same}
        with pytest.raises(DBAPIError, match="append-only"), by_hand(store) as db:
            db.execute(insert(e).prefix_with("OR REPLACE").values(values))
        assert problems(store) == []


@pytest.mark.parametrize("run_id", ["main", "gone", "@store"])
@pytest.mark.parametrize("column", EVENT_COLUMNS)
def test_an_event_edited_by_hand_is_found(column: str, run_id: str, rich: Store) -> None:
    e = schema.events
    with tampered(rich, "events") as db:
        rows = db.execute(select(e).where(e.c.run_no == run_no(db, run_id)).order_by(e.c.seq)).mappings().all()
        row = dict(rows[len(rows) // 2])
        value = other_than(row[column], e.c[column])
        if column == "pos":
            value = 100_000
        elif column == "body":
            body = b'{"data":{},"set":{}}'
            value = pack_body(body) if row["body"][0] != 2 else pruned_body(bytes(32))
        db.execute(update(e).where(e.c.pos == row["pos"]).values({column: value}))
        db.commit()
        assert problems(rich)


@pytest.mark.parametrize("run_id", ["main", "stuck", "gone", "@store"])
@pytest.mark.parametrize("which", ["first", "middle", "last"])
def test_a_deleted_event_is_found(which: str, run_id: str, rich: Store) -> None:
    e = schema.events
    with tampered(rich, "events") as db:
        no = run_no(db, run_id)
        last = db.execute(select(func.max(e.c.seq)).where(e.c.run_no == no)).scalar_one()
        seq = {"first": 1, "middle": last // 2, "last": last}[which]
        db.execute(delete(e).where(e.c.run_no == no, e.c.seq == seq))
        db.commit()
        assert run_id in {p.run_id for p in problems(rich)}


def test_events_deleted_all_together_are_found(rich: Store) -> None:
    e = schema.events
    for run_id in ("main", "gone", "@store"):
        with tampered(rich, "events") as db:
            db.execute(delete(e).where(e.c.run_no == run_no(db, run_id)))
            db.commit()
            assert run_id in {p.run_id for p in problems(rich)}


@pytest.mark.parametrize("run_id", ["main", "gone"])
def test_events_deleted_together_with_their_run_are_found_by_what_they_left(run_id: str, rich: Store) -> None:
    e = schema.events
    with tampered(rich, "events", "runs", "tombstones") as db:
        no = run_no(db, run_id)
        db.execute(delete(e).where(e.c.run_no == no))
        for t in (schema.runs, schema.tombstones):
            db.execute(delete(t).where(t.c.run_id == run_id))
        db.commit()
        assert problems(rich)


def test_a_run_whose_row_was_deleted_is_missed_by_its_events(rich: Store) -> None:
    with tampered(rich, "runs") as db:
        no = run_no(db, "main")
        db.execute(delete(schema.runs).where(schema.runs.c.run_no == no))
        db.commit()
        assert Problem(f"run number {no}", "has events, but its run is missing") in problems(rich)


def test_a_run_that_a_batch_names_is_missed_when_every_row_of_it_is_gone(rich: Store) -> None:
    names = ["events", "runs", *(t.name for t in schema.PER_RUN), "snapshots", "run_tags"]
    with tampered(rich, *names) as db:
        no = run_no(db, "stuck")
        for t in (schema.events, schema.runs, *schema.PER_RUN, schema.snapshots, schema.run_tags):
            db.execute(delete(t).where(t.c.run_no == no))
        db.commit()
        assert "a batch names it" in str([str(p) for p in problems(rich) if p.run_id == "stuck"])


def test_on_sqlite_a_newest_event_removed_with_its_traces_is_found_by_the_count(tmp_path: Path) -> None:
    with open_store(tmp_path / "walkback.db") as store:
        start(store)
        store.do(AddNote(actor=ANN, run_id="r1", reason="shameful"))
        e, r = schema.events, schema.runs
        with by_hand(store) as db:
            drop_triggers(db)
            first = db.execute(select(e).where(e.c.seq == 1, e.c.run_no != 0)).mappings().one()
            db.execute(delete(e).where(e.c.seq == 2, e.c.run_no == first["run_no"]))
            db.execute(update(r).values(head_seq=1, head_hash=first["hash"], updated_at=first["at"]))
        assert fsck(store, "r1").problems == []  # one run alone cannot know
        assert "some were deleted" in str(problems(store)[0])


def test_a_swapped_pair_of_events_is_found(rich: Store) -> None:
    e = schema.events
    with tampered(rich, "events") as db:
        no = run_no(db, "main")
        for a, b in ((5, -1), (6, 5), (-1, 6)):
            db.execute(update(e).where(e.c.run_no == no, e.c.seq == a).values(seq=b))
        db.commit()
        assert "event 5 was edited" in str(problems(rich)[0])


def test_events_that_changed_places_in_the_order_of_all_are_found(rich: Store) -> None:
    e = schema.events
    with tampered(rich, "events") as db:
        no = run_no(db, "main")
        a, b = db.execute(select(e.c.pos).where(e.c.run_no == no, e.c.seq.in_([5, 6])).order_by(e.c.seq)).scalars()
        for old, new in ((a, -1), (b, a), (-1, b)):
            db.execute(update(e).where(e.c.pos == old).values(pos=new))
        db.commit()
        assert "was moved" in str(problems(rich)[0])


def test_an_event_added_by_hand_is_found_even_if_it_chains(rich: Store) -> None:
    with tampered(rich, "events") as db:
        e = schema.events
        no = run_no(db, "main")
        last = db.execute(select(e).where(e.c.run_no == no).order_by(e.c.seq.desc()).limit(1)).mappings().one()
        body = encode({"data": {}, "set": {}})
        db.execute(insert(e).values(forged(dict(last), "main", last["seq"] + 1, last["at"], bytes(last["hash"]), body)))
        db.commit()
        assert "its head says" in str(problems(rich)[0])


def test_a_body_reduced_to_its_digest_in_a_run_that_was_not_pruned_is_found(rich: Store) -> None:
    """The one change the triggers let through, since `prune` needs it; the chain cannot show it."""
    e = schema.events
    with rich.backend.engine.connect() as db:
        rows = db.execute(select(e.c.pos, e.c.kind, e.c.body, e.c.run_no)).all()
        gone = run_no(db, "gone")
    kept = {}
    for pos, kind, body, no in rows:
        if bytes(body)[0] != 2:
            kept[kind, no == gone] = (pos, bytes(body))
    for pos, body in kept.values():
        with tampered(rich, "events") as db:
            db.execute(update(e).where(e.c.pos == pos).values(body=pruned_body(body_digest(body))))
            db.commit()
            assert "its body was removed" in str(problems(rich)[0])


def forged(like: dict[str, Any], run_id: str, seq: int, at: int, previous: bytes, body: bytes) -> dict[str, Any]:
    """An event that chains, as someone would make it who read the source."""
    digest = body_digest(pack_body(body))
    hashed = chain_hash(previous, run_id, seq, at, like["kind"], like["actor"], like["step"], None, digest)
    row = {k: like[k] for k in ("run_no", "kind", "actor", "step")}
    return row | {"seq": seq, "at": at, "transition": None, "hash": hashed, "body": pack_body(body)}


@pytest.mark.parametrize(
    "body",
    [
        b"not json",
        b"[]",
        b"5",
        b"{}",
        b'{"data":{}}',
        b'{"data":{},"set":5}',
        b'{"data":{},"set":{"events":{"1":{"kind":"x"}}}}',
        b'{"data":{},"set":{"runs":{"":{"no_such_column":1}}}}',
        b'{"data":{},"set":{"runs":{"":5}}}',
        b'{"data":{},"set":{"attempts":{"x":{"n":1}}}}',
        b'{"data":{},"set":{"attempts":{"1/x":{"n":1}}}}',
        b'{"data":{},"set":{"runs":{"":{"last_snapshot":7}}}}',
        b'{"data":{"snapshot":5},"set":{"runs":{"":{"last_snapshot":7}}}}',
        b'{"data":{"snapshot":"x:y"},"set":{"runs":{"":{"last_snapshot":7}}}}',
        b'{"data":{"snapshot":"7:00"},"set":{"runs":{"":{"last_snapshot":7}}}}',
        b'{"data":{},"set":{"runs":{"":{"tags":"{"}}}}',
        b'{"data":{},"set":{"runs":{"":{"tags":"5"}}}}',
    ],
)
def test_a_planted_body_that_chains_is_a_problem_and_not_a_crash(body: bytes, rich: Store) -> None:
    with tampered(rich, "events", "runs") as db:
        e, r = schema.events, schema.runs
        no = run_no(db, "main")
        last = dict(db.execute(select(e).where(e.c.run_no == no).order_by(e.c.seq.desc()).limit(1)).mappings().one())
        row = forged(last, "main", last["seq"] + 1, last["at"], bytes(last["hash"]), body)
        db.execute(insert(e).values(row))
        db.execute(update(r).where(r.c.run_no == no).values(head_seq=row["seq"], head_hash=row["hash"]))
        db.commit()
        assert "main" in {p.run_id for p in problems(rich, deep=True)}


def test_a_frame_planted_as_a_body_is_not_unpacked(rich: Store) -> None:
    e = schema.events
    for planted in (b"", b"\x01", b"\x01\x28\xb5\x2f\xfd\xe4" + b"\xff" * 12, b"\x02short", b"\x80\x04\x95"):
        with tampered(rich, "events") as db:
            db.execute(update(e).where(e.c.run_no == run_no(db, "main"), e.c.seq == 5).values(body=planted))
            db.commit()
            assert "event 5 cannot be read" in str(problems(rich)[0])


# --- snapshots ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", SNAPSHOT_COLUMNS)
def test_a_snapshot_changed_by_hand_is_found(column: str, rich: Store) -> None:
    s = schema.snapshots
    with tampered(rich, "snapshots") as db:
        row = dict(
            db.execute(select(s).where(s.c.run_no == run_no(db, "main"), s.c.n == 17)).mappings().one()
        )  # stored against one before it
        value = b"\x28\xb5\x2f\xfd" if column == "data" else other_than(row[column], s.c[column])
        db.execute(update(s).where(*where(s, row)).values({column: value}))
        db.commit()
        assert "main" in {p.run_id for p in problems(rich, deep=True)}


def test_without_deep_a_snapshots_digest_is_compared_and_its_content_is_not(rich: Store) -> None:
    s = schema.snapshots
    for column, found in (("digest", True), ("data", False)):
        with tampered(rich, "snapshots") as db:
            db.execute(update(s).where(s.c.run_no == run_no(db, "main"), s.c.n == 3).values({column: b"planted"}))
            db.commit()
            assert bool(problems(rich)) is found


def test_a_snapshot_that_was_deleted_or_added_is_found(rich: Store) -> None:
    s = schema.snapshots
    with tampered(rich, "snapshots") as db:
        db.execute(delete(s).where(s.c.run_no == run_no(db, "main"), s.c.n == 17))
        db.commit()
        assert "snapshot 17" in str(problems(rich)[0])
    with tampered(rich, "snapshots") as db:
        row = dict(db.execute(select(s).where(s.c.run_no == run_no(db, "main"), s.c.n == 17)).mappings().one())
        db.execute(insert(s).values(row | {"n": 1000}))
        db.commit()
        assert "snapshots, but its log names" in str(problems(rich)[0])


def test_two_snapshots_that_changed_places_are_found(rich: Store) -> None:
    s = schema.snapshots
    with tampered(rich, "snapshots") as db:
        no = run_no(db, "main")
        for a, b in ((5, 1000), (6, 5), (1000, 6)):
            db.execute(update(s).where(s.c.run_no == no, s.c.n == a).values(n=b))
        db.commit()
        assert len(problems(rich)) >= 2


def test_a_chain_of_snapshots_that_leads_in_a_circle_is_a_problem_and_not_an_endless_loop(rich: Store) -> None:
    s = schema.snapshots
    with tampered(rich, "snapshots") as db:
        no = run_no(db, "main")
        db.execute(update(s).where(s.c.run_no == no, s.c.n == 1).values(base_run=no, base_n=2))
        db.commit()
        assert problems(rich, deep=True)


# --- pruned runs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", TOMBSTONE_COLUMNS)
def test_a_tombstone_edited_by_hand_is_found(column: str, rich: Store) -> None:
    t = schema.tombstones
    with tampered(rich, "tombstones") as db:
        row = pick(db, t)
        db.execute(update(t).values({column: other_than(row[column], t.c[column])}))
        db.commit()
        assert problems(rich)


def test_a_tombstone_deleted_by_hand_is_found(rich: Store) -> None:
    with tampered(rich, "tombstones") as db:
        db.execute(delete(schema.tombstones))
        db.commit()
        assert problems(rich)


def test_a_run_made_to_look_pruned_is_found(rich: Store) -> None:
    names = ["runs", *(t.name for t in schema.PER_RUN), "snapshots", "run_tags", "tombstones"]
    with tampered(rich, *names) as db:
        run = db.execute(select(schema.runs).where(schema.runs.c.run_id == "main")).mappings().one()
        for t in (schema.runs, *schema.PER_RUN, schema.snapshots, schema.run_tags):
            db.execute(delete(t).where(t.c.run_no == run["run_no"]))
        copied = ("run_id", "run_no", "agent", "status", "finished_at", "head_seq", "head_hash")
        tombstone = {name: run[name] for name in copied} | {"pruned_at": 1}
        db.execute(insert(schema.tombstones).values(tombstone))
        db.commit()
        (problem,) = problems(rich)
        assert (problem.run_id, "does not say that it was pruned" in problem.what) == ("main", True)


def test_rows_that_come_back_to_a_pruned_run_are_found(rich: Store) -> None:
    t = schema.steps
    with tampered(rich, "steps") as db:
        row = pick(db, t) | {"run_no": run_no(db, "gone")}
        db.execute(insert(t).values(row))
        db.commit()
        assert "it was pruned, but has rows in steps" in str(problems(rich)[0])


def test_what_prune_leaves_of_a_body_is_the_digest_that_the_chain_was_made_of(rich: Store) -> None:
    e = schema.events
    with rich.backend.engine.connect() as db:
        rows = db.execute(select(e.c.kind, e.c.body).where(e.c.run_no == run_no(db, "gone")).order_by(e.c.seq)).all()
    pruned = {kind for kind, body in rows if bytes(body)[0] == 2}
    assert pruned == {"tool_result", "observation"}
    assert all(unpack_body(bytes(body)) for kind, body in rows if kind not in pruned)
