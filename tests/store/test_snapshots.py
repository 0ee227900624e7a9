"""The state before and after every step: exact, small, read in a bounded number of hops, and safe to read."""

from __future__ import annotations

import pickle
import random
import string
import subprocess
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import zstandard
from sqlalchemy import delete, insert, select, update

from tests.store.driver import ANN, Held, claim, finish, held, intend, open_with_clock, register, start, succeed, write
from tests.support.people import open_store
from walkback_store import schema, snapshots
from walkback_store.errors import CorruptData, NotFound, StoreError, ValueRefused
from walkback_store.frames import pack
from walkback_store.fsck import fsck
from walkback_store.housekeeping import prune
from walkback_store.machine.base import Transition
from walkback_store.machine.runs import FinishRun, NeedOperator, ParkRun, RecordStep, ReleaseRun, TakeSnapshot
from walkback_store.snapshots import LEVELS, MAX_DEPTH, RADIX, base_of, chain_of
from walkback_store.store import Store
from walkback_store.values import MAX_BYTES, encode
from walkback_store.words import Why

HOPS = (RADIX - 1) * LEVELS + 1
"""Rows to look at for any snapshot of a run that is no fork."""


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with open_store(store_url) as opened:
        yield opened


def steps_of(store: Store, run_id: str = "r1") -> dict[str, tuple[Any, Any]]:
    """The state before and after each step, as the console would show them."""
    s = schema.steps
    rows = store._rows(select(s).where(s.c.run_no == store.run(run_id)["run_no"]).order_by(s.c.first_seq))
    return {
        row["step"]: tuple(None if n is None else store.state(run_id, n) for n in (row["before"], row["after"]))  # type: ignore[misc]
        for row in rows
    }


def stored(store: Store, run_id: str = "r1") -> list[dict[str, Any]]:
    s = schema.snapshots
    return store._rows(select(s).where(s.c.run_no == store.run(run_id)["run_no"]).order_by(s.c.n))


def hops(store: Store, run_id: str) -> list[int]:
    """How many rows reading each snapshot of a run has to look at, over all runs it builds on."""
    s = schema.snapshots
    rows = store._rows(select(s.c.run_no, s.c.n, s.c.base_run, s.c.base_n))
    bases = {(row["run_no"], row["n"]): (row["base_run"], row["base_n"]) for row in rows}
    run_no = store.run(run_id)["run_no"]
    counts = []
    for n in range(sum(row["run_no"] == run_no for row in rows)):
        at, count = (run_no, n), 1
        while bases[at] != (None, None):
            at, count = bases[at], count + 1
        counts.append(count)
    return counts


# --- before and after --------------------------------------------------------------------------------------------


def test_every_step_has_a_before_and_an_after_and_they_meet(store: Store) -> None:
    h = held(store)
    for n in range(1, 20):
        write(h, str(n), before={"n": n - 1}, after={"n": n})
    finish(h)
    assert steps_of(store) == {str(n): ({"n": n - 1}, {"n": n}) for n in range(1, 20)}
    assert len(stored(store)) == 21, "one for each state there was, and not two for each step"
    assert fsck(store, deep=True).clean


def test_what_the_agent_does_between_two_calls_belongs_to_the_step_before(store: Store) -> None:
    """The state after step N is the state at the next boundary, and so the state before step N+1."""
    h = held(store)
    write(h, "1", before={"n": 0}, after={"n": 1})
    write(h, "2", before={"n": 1, "thought": "hm"})
    store.do(RecordStep(**h.by, step="3", name="look", state=encode({"n": 2})))
    store.do(RecordStep(**h.by, step="4", name="look", state=encode({"n": 3})))
    store.do(FinishRun(**h.by, state=encode({"n": 4})))
    assert steps_of(store) == {
        "1": ({"n": 0}, {"n": 1, "thought": "hm"}),
        "2": ({"n": 1, "thought": "hm"}, {"n": 2}),
        "3": ({"n": 2}, {"n": 3}),
        "4": ({"n": 3}, {"n": 4}),
    }


@pytest.mark.parametrize("boundary", ["intend", "settle", "step", "snapshot", "park", "release", "need", "finish"])
def test_every_boundary_takes_the_state_along(store: Store, boundary: str) -> None:
    h = held(store)
    state = encode({"at": boundary})
    if boundary in {"intend", "settle"}:
        intend(h, "1", state={"at": boundary} if boundary == "intend" else None)
        if boundary == "settle":
            succeed(h, "1", state={"at": boundary})
    else:
        of_boundary: dict[str, Callable[[], Transition]] = {
            "step": lambda: RecordStep(**h.by, step="1", name="look", state=state),
            "snapshot": lambda: TakeSnapshot(**h.by, state=state),
            "park": lambda: ParkRun(**h.by, waits_for="signal:go", state=state),
            "release": lambda: ReleaseRun(**h.by, state=state),
            "need": lambda: NeedOperator(**h.by, why=Why.REVIEW, detail="look", state=state),
            "finish": lambda: FinishRun(**h.by, state=state),
        }
        store.do(of_boundary[boundary]())
    assert store.state("r1", h.run["last_snapshot"]) == {"at": boundary}
    assert len(stored(store)) == 2
    assert fsck(store, deep=True).clean


def test_a_state_that_did_not_change_is_stored_once(store: Store) -> None:
    h = held(store)
    same = {"big": list(range(1000))}
    write(h, "1", before=same, after=same)
    rows = len(stored(store))
    for n in range(2, 30):
        write(h, str(n), before=same, after=same)
    assert len(stored(store)) == rows
    assert set(map(repr, steps_of(store).values())) == {repr((same, same))}
    write(h, "30", before=same, after={"small": 1})
    write(h, "31", before={"small": 1}, after=same)
    assert len(stored(store)) == rows + 2
    assert fsck(store, deep=True).clean


# --- exact -------------------------------------------------------------------------------------------------------


def text_of(noise: random.Random, length: int) -> str:
    return "".join(noise.choices(string.printable + "äöü€𝄞\0", k=length))


def growing(noise: random.Random, n: int) -> object:
    return {"log": [f"line {i}: {i * i}" for i in range(n)]}


def shrinking(noise: random.Random, n: int) -> object:
    return {"left": list(range(2000 - n * 7))}


def unlike(noise: random.Random, n: int) -> object:
    return {text_of(noise, 5): text_of(noise, noise.randrange(3000)), "bytes": noise.randbytes(noise.randrange(3000))}


def mixed(noise: random.Random, n: int) -> object:
    return noise.choice([growing, shrinking, unlike, lambda *_: None, lambda *_: [], lambda *_: n])(noise, n)


@pytest.mark.parametrize("kind", [growing, shrinking, unlike, mixed])
def test_every_snapshot_comes_back_exactly(store_url: str, kind: Any) -> None:
    noise = random.Random(42)
    states: list[bytes] = []
    with open_store(store_url) as store:
        h = held(store)
        for n in range(150):
            if n == 75:  # another process goes on, and knows nothing of what was written so far
                store = h.store = reopened(store, store_url)
            states.append(encode(kind(noise, n)))
            store.do(TakeSnapshot(**h.by, state=states[-1]))
        states.insert(0, encode({"step": 0}))
        distinct = [state for before, state in zip([b"", *states], states, strict=False) if state != before]
        for n, wanted in enumerate(distinct):
            assert store.state_bytes("r1", n) == wanted, n
        assert h.run["snapshots"] == len(distinct)
        assert fsck(store, deep=True).clean
        store.close()


def reopened(store: Store, url: str) -> Store:
    store.close()
    return open_store(url)


# --- bounded and small -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 40, 70])
def test_a_stretch_of_snapshots_is_each_of_them(store: Store, count: int) -> None:
    h = held(store)
    for n in range(count):
        store.do(TakeSnapshot(**h.by, state=encode({"n": n, "text": "x" * 500})))
    last = store.run("r1")["last_snapshot"]
    every = [store.state_bytes("r1", n) for n in range(last + 1)]
    for first in (0, 1, 31, 32, 33):
        for end in (first, min(first + 5, last), last):
            if first <= end <= last:
                assert list(store.states_bytes("r1", first, end)) == every[first : end + 1]


def test_no_snapshot_is_further_from_a_keyframe_than_the_bound() -> None:
    period = RADIX**LEVELS
    for n in (*range(5000), *range(period - 2000, period + 2000), 3 * period - 1, 1000 * period - 1):
        chain = chain_of(n)
        assert chain[0] == n
        assert base_of(chain[-1]) is None
        assert chain == sorted(set(chain), reverse=True)
        assert len(chain) <= HOPS <= MAX_DEPTH
    assert len(chain_of(period - 1)) == HOPS
    assert f"at most {HOPS} hops" in str(snapshots.__doc__).replace("\n", " ")


def test_reading_any_of_many_snapshots_takes_a_bounded_number_of_hops_and_little_space(store: Store) -> None:
    h = held(store)
    noise = random.Random(7)
    state = {"lines": [text_of(noise, 60) for _ in range(300)]}
    sizes = 0
    for _ in range(600):
        state["lines"][noise.randrange(300)] = text_of(noise, 60)
        encoded = encode(state)
        sizes += len(encoded)
        store.do(TakeSnapshot(**h.by, state=encoded))
    rows = stored(store)
    assert len(rows) == 601
    assert max(hops(store, "r1")) <= HOPS
    assert sum(len(row["data"]) for row in rows) * 20 < sizes
    assert store.state("r1", 600) == state
    assert fsck(store, deep=True).clean


def test_space_follows_what_changed_and_not_how_large_the_state_is(store: Store) -> None:
    """The same small changes in a state ten times as large take about as much."""
    taken = {}
    register(store)
    for size in (200, 2000):
        noise = random.Random(9)
        state: dict[str, Any] = {"lines": [text_of(noise, 60) for _ in range(size)]}
        start(store, f"size-{size}", state=encode(state))
        h = claim(store)
        for n in range(100):
            state["lines"][n] = f"changed {n}"
            store.do(TakeSnapshot(**h.by, state=encode(state)))
        rows = stored(store, f"size-{size}")
        taken[size] = sum(len(row["data"]) for row in rows[1:])
        assert taken[size] * 10 < sum(row["size"] for row in rows[1:])
    assert taken[2000] < taken[200] * 3


# --- forks -------------------------------------------------------------------------------------------------------


def big(**more: object) -> dict[str, object]:
    return {"body": [f"{n}: {n**3}" for n in range(3000)], **more}


def test_a_fork_shares_its_parents_state(store: Store) -> None:
    h = held(store)
    write(h, "1", before=big(), after=big(paid=True))
    size = len(encode(big()))
    start(store, "fork", parent="r1", fork_step="1", fork_kind="what-if", state=encode(big(paid="edited")))
    (first,) = stored(store, "fork")
    assert first["base_run"] == h.run["run_no"]
    assert len(first["data"]) * 50 < size
    assert store.state("fork", 0) == big(paid="edited")
    write(h, "2", before=big(paid=True), after={"parent": "goes on"})
    assert store.state("fork", 0) == big(paid="edited")
    assert fsck(store, deep=True).clean


def small(n: int) -> bytes:
    return encode({"body": [f"{i}: {i**3}" for i in range(60)], "n": n})


def test_a_fork_of_a_fork_of_a_fork_stays_bounded(store: Store) -> None:
    generations = MAX_DEPTH + 20
    start(store, "f0", state=small(0))
    for g in range(1, generations):
        start(store, f"f{g}", parent=f"f{g - 1}", state=small(g))
    depths = [hops(store, f"f{g}")[0] for g in (0, 1, 2, MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1, MAX_DEPTH + 2)]
    assert depths == [1, 2, 3, MAX_DEPTH, MAX_DEPTH + 1, 1, 2], "where the chain gets too long, a new keyframe begins"
    for g in (1, MAX_DEPTH, MAX_DEPTH + 1, generations - 1):
        assert store.state_bytes(f"f{g}", 0) == small(g)
    assert fsck(store, deep=True).clean


def test_a_fork_far_down_can_go_on_for_long(store: Store) -> None:
    """A chain of forks and a chain of steps, one on top of the other, stay within the bound together."""
    start(store, "f0", state=small(0))
    for g in range(1, MAX_DEPTH - 5):
        start(store, f"f{g}", parent=f"f{g - 1}", state=small(g))
    start(store, "deep", agent="deep", parent=f"f{MAX_DEPTH - 6}", state=small(0))
    register(store, "w2", ["deep"])
    h = claim(store, "w2", "deep")
    steps = 3 * RADIX
    for n in range(1, steps):
        store.do(TakeSnapshot(**h.by, state=small(n)))
    assert max(hops(store, "deep")) == MAX_DEPTH + 1
    assert [store.state_bytes("deep", n) for n in range(steps)] == [small(n) for n in range(steps)]
    assert fsck(store, deep=True).clean


def test_a_parent_is_kept_for_as_long_as_its_fork(store_url: str) -> None:
    store, clock = open_with_clock(store_url)
    with store:
        h = held(store)
        write(h, "1", before=big(), after=big(paid=True))
        finish(h)
        start(store, "fork", parent="r1", state=encode(big(paid="edited")))
        clock.pass_(10**9)
        assert prune(store, clock.now, ANN).runs == 0
        assert store.state("fork", 0) == big(paid="edited")
        fork = claim(store)
        finish(fork)
        clock.pass_(10**9)
        assert prune(store, clock.now, ANN).runs == 2
        assert fsck(store, deep=True).clean


def test_a_fork_of_a_pruned_run_stands_on_its_own(store_url: str) -> None:
    store, clock = open_with_clock(store_url)
    with store:
        h = held(store)
        write(h, "1", before=big(), after=big(paid=True))
        finish(h)
        clock.pass_(10**9)
        prune(store, clock.now, ANN)
        start(store, "fork", parent="r1", state=encode(big(paid=True)))
        assert store.state("fork", 0) == big(paid=True)
        assert stored(store, "fork")[0]["base_run"] is None
        assert fsck(store, deep=True).clean


# --- planted bytes -----------------------------------------------------------------------------------------------

FRAME_OF_10_GB = (
    zstandard.ZstdCompressor(level=1).compress(b"x")[:4]  # the magic number
    + b"\xe0"  # a single segment, whose size takes eight bytes
    + (10 * 1024**3).to_bytes(8, "little")
    + b"\x02\x00\x00x" * 3
)


def plant(store: Store, n: int, **columns: object) -> None:
    """As somebody does who can write to the database and does not use this package."""
    s = schema.snapshots
    run_no = store.run("r1")["run_no"]
    with store.backend.engine.connect().execution_options(walkback_writes=True) as db, db.begin():
        db.execute(update(s).where(s.c.run_no == run_no, s.c.n == n).values(columns))


def prepared(store: Store) -> Held:
    """Five snapshots: a keyframe, and deltas on each other."""
    h = held(store)
    for n in range(1, 5):
        store.do(TakeSnapshot(**h.by, state=encode(big(n=n))))
    assert [row["n"] for row in stored(store)] == [0, 1, 2, 3, 4]
    return h


def planted(what: str, rows: list[dict[str, Any]]) -> dict[str, object]:
    delta = bytes(rows[4]["data"])
    another = zstandard.ZstdCompressionDict(b"moved" + encode(big(n=4)), dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    other = zstandard.ZstdCompressor(dict_data=another, write_content_size=True).compress(encode(big(n=4)))
    bomb = zstandard.ZstdCompressor(write_content_size=True).compress(bytes(MAX_BYTES + 1))
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(MAX_BYTES * 2))
    ways: dict[str, dict[str, object]] = {
        "declares 10 GB": {"data": FRAME_OF_10_GB},
        "declares 10 GB on a base": {"data": FRAME_OF_10_GB, "base_n": 3},
        "a bomb": {"data": bomb, "base_n": None, "base_run": None},
        "a bomb that does not say its size": {"data": silent, "base_n": None, "base_run": None},
        "truncated": {"data": delta[:-5]},
        "only a header": {"data": delta[:8]},
        "nothing": {"data": b""},
        "a pickle": {"data": pickle.dumps({"n": 4}), "base_n": None, "base_run": None},
        "a packed pickle": {"data": pack(pickle.dumps({"n": 4})), "base_n": None, "base_run": None},
        "one bit": {"data": delta[:-1] + bytes([delta[-1] ^ 1])},
        "another base": {"data": other},
        "the wrong base": {"base_n": 0},
        "no base": {"base_n": None, "base_run": None},
        "itself as base": {"base_n": 4},
        "other content": {"data": pack(encode({"n": "forged"})), "base_n": None, "base_run": None},
        "another size": {"size": 7},
        "another digest": {"digest": sha256(b"x").digest()},
    }
    return ways[what]


PLANTED = [
    "declares 10 GB", "declares 10 GB on a base", "a bomb", "a bomb that does not say its size", "truncated",
    "only a header", "nothing", "a pickle", "a packed pickle", "one bit", "another base", "the wrong base", "no base",
    "itself as base", "other content", "another size", "another digest",
]  # fmt: skip


@pytest.mark.parametrize("what", PLANTED)
def test_planted_bytes_are_refused_and_reported(store: Store, what: str) -> None:
    prepared(store)
    plant(store, 4, **planted(what, stored(store)))
    with pytest.raises(CorruptData):
        store.state("r1", 4)
    with pytest.raises(CorruptData):
        list(store.states_bytes("r1", 2, 5))
    assert store.state("r1", 3) == big(n=3), "its neighbours are as they were"
    report = fsck(store, deep=True)
    assert any("snapshot 4" in problem.what for problem in report.problems), report.problems


def test_a_cycle_of_bases_is_refused_and_reported(store: Store) -> None:
    prepared(store)
    plant(store, 3, base_n=4)
    for n in (3, 4):
        with pytest.raises(CorruptData, match="chain"):
            store.state("r1", n)
    problems = [problem.what for problem in fsck(store, deep=True).problems]
    assert any("snapshot 3" in p for p in problems), problems
    assert any("snapshot 4" in p for p in problems), problems


def test_a_base_that_is_gone_is_said_to_be_gone(store: Store) -> None:
    prepared(store)
    s = schema.snapshots
    with store.backend.engine.connect().execution_options(walkback_writes=True) as db, db.begin():
        db.execute(delete(s).where(s.c.n == 2))
    for n in (2, 3, 4):
        with pytest.raises(NotFound):
            store.state("r1", n)
    assert store.state("r1", 1) == big(n=1)
    assert not fsck(store).clean


def test_a_snapshot_that_no_event_named_is_reported(store: Store) -> None:
    h = prepared(store)
    state = encode({"forged": True})
    row = {"run_no": h.run["run_no"], "n": 5, "depth": 0, "size": len(state), "digest": sha256(state).digest()}
    with store.backend.engine.connect().execution_options(walkback_writes=True) as db, db.begin():
        db.execute(insert(schema.snapshots).values(row | {"data": pack(state)}))
    assert not fsck(store, deep=True).clean


def test_a_worker_that_meets_planted_bytes_writes_nothing_on_top_of_them(store_url: str) -> None:
    """Another process took the snapshots, so this one has to read the one it builds on."""
    with open_store(store_url) as store:
        h = prepared(store)
        plant(store, 4, data=FRAME_OF_10_GB)
    with open_store(store_url) as store:
        before = store.run("r1")["head_seq"]
        with pytest.raises(CorruptData):
            store.do(TakeSnapshot(**h.by, state=encode(big(n=5))))
        assert store.run("r1")["head_seq"] == before


READ_IN_LITTLE_MEMORY = """
import resource, sys
from tests.support.people import open_store
from walkback_store.errors import CorruptData
from walkback_store.fsck import fsck
with open_store(sys.argv[1]) as store:
    store.state("r1", 3)
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[2]), -1))
    try:
        store.state("r1", 4)
    except CorruptData:
        print("refused")
    print(any("snapshot 4" in p.what for p in fsck(store, deep=True).problems))
"""


@pytest.mark.parametrize(
    "what",
    ["declares 10 GB", "declares 10 GB on a base", "a bomb", "a bomb that does not say its size", "itself as base"],
)
def test_planted_bytes_are_refused_within_little_memory(tmp_path: Path, what: str) -> None:
    url = str(tmp_path / "walkback.db")
    with open_store(url) as store:
        prepared(store)
        plant(store, 4, **planted(what, stored(store)))
    found = subprocess.run(
        [sys.executable, "-c", READ_IN_LITTLE_MEMORY, url, str(64 * 1024 * 1024)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.stdout.split() == ["refused", "True"], found.stderr


# --- what cannot be stored ---------------------------------------------------------------------------------------


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def cycle() -> object:
    value: dict[str, object] = {}
    value["self"] = [value]
    return value


REFUSED: list[tuple[object, str]] = [
    ({"cart": [1, 2, 3, {"price": float("nan")}]}, "$.cart[3].price"),
    ({"cart": {"price": float("inf")}}, "$.cart.price"),
    ({"name": "a\ud800b"}, "$.name"),
    ({"f": [print]}, "$.f[0]"),
    ({"deep": nested(200)}, "$.deep" + "[0]" * 199),
    (cycle(), "$.self[0]"),
]


@pytest.mark.parametrize(("value", "path"), REFUSED, ids=["nan", "inf", "surrogate", "function", "depth", "cycle"])
def test_what_cannot_be_stored_is_refused_with_its_path_before_anything_is_written(
    store: Store, value: Any, path: str
) -> None:
    h = held(store)
    write(h, "1", before={"n": 1}, after={"n": 2})
    before, rows, log = h.run, len(stored(store)), store.events("r1", limit=100)
    with pytest.raises(ValueRefused) as raised:
        encode(value)
    assert raised.value.path.startswith(path), raised.value.path
    attempts: list[Callable[[], object]] = [
        lambda: intend(h, "2", args=value),
        lambda: store.do(RecordStep(**h.by, step="2", name="look", data={"saw": value}, state=encode({"n": 3}))),
        lambda: store.do(FinishRun(**h.by, output=value, state=encode({"n": 4}))),
    ]
    for attempt in attempts:
        with pytest.raises(ValueRefused) as raised:
            attempt()
        assert path.removeprefix("$")[:8] in raised.value.path, raised.value.path
    assert (h.run, len(stored(store)), store.events("r1", limit=100)) == (before, rows, log)
    write(h, "2", before={"n": 3}, after={"n": 4})
    assert store.state("r1", h.run["last_snapshot"]) == {"n": 4}
    assert fsck(store, deep=True).clean


def test_a_state_over_the_size_limit_is_refused_with_where_it_is_large() -> None:
    with pytest.raises(ValueRefused, match="limit") as raised:
        encode({"small": 1, "large": {"text": "x" * 2000}}, max_bytes=1000)
    assert "large" in str(raised.value)


def test_a_body_over_the_size_limit_is_refused_before_anything_is_written(store: Store) -> None:
    h = held(store)
    before = h.run
    with pytest.raises(ValueRefused, match="limit"):
        store.do(RecordStep(**h.by, step="1", name="look", data={"saw": "x" * (MAX_BYTES + 1)}))
    assert h.run == before
    assert fsck(store).clean


def test_one_refused_value_costs_its_neighbours_in_the_same_commit_nothing(store: Store) -> None:
    h = held(store)
    start(store, "r2")
    other = claim(store)
    results = store.commit(
        [
            RecordStep(**h.by, step="1", name="look", data={"saw": float("nan")}, state=encode({"n": "refused"})),
            RecordStep(**other.by, step="1", name="look", state=encode({"n": "kept"})),
        ]
    )
    assert isinstance(results[0], ValueRefused)
    assert not isinstance(results[1], StoreError)
    assert (len(stored(store)), len(stored(store, "r2"))) == (1, 2)
    store.do(RecordStep(**h.by, step="1", name="look", state=encode({"n": "next"})))
    assert store.state("r1", 1) == {"n": "next"}
    assert fsck(store, deep=True).clean
