"""What a person decides about, exactly as it was shown to them.

An action is made from a `Subject` and never looks anything up again: so it is about what was on the screen, and the
state machine refuses it if that has changed meanwhile (`seen`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from walkback_store import Store
    from walkback_store.log import Row
    from walkback_store.queries import OperationDetail

WRITES_AT_MOST = 5_000
"""Writes of one run that are looked at for an undo; more than anyone undoes without a script."""


GROUP_AT_MOST = 1_000
EVENTS_AT_MOST = 2_000
"""How far back the words of an argument are looked for."""
WORDS = 4
"""Shorter texts are found everywhere, and that says nothing."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A run, or one operation of it; or something of the store's own, such as a freeze or a group of operations."""

    at: int
    """When it was read, by the clock that dates the store."""
    run: Row | None = None
    detail: OperationDetail | None = None
    writes: tuple[Row, ...] = ()
    """Every write of the run, in order; empty unless it was asked for."""
    decision: Row | None = None
    """Of a person, about this; it waits and can be taken back."""
    freeze: Row | None = None
    freezes: tuple[Row, ...] = ()
    """In force, whatever they are about."""
    members: tuple[Row, ...] = ()
    """Of a group: rows of operations, each with its `run_id`."""
    batch: Row | None = None
    """That retries these members, or did so last."""
    args: Any = None
    """Of the call, where its newest events no longer hold them."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """By argument: in the result of which earlier step the same words stand."""
    tool: str | None = None
    agent: str | None = None
    missing: str | None = None
    """Why it cannot be shown: it was removed, or was never there."""

    @property
    def run_id(self) -> str:
        return "" if self.run is None else str(self.run["run_id"])

    @property
    def operation(self) -> Row | None:
        return None if self.detail is None else self.detail.operation

    @property
    def step(self) -> str | None:
        return None if self.operation is None else str(self.operation["step"])

    @property
    def approval(self) -> Row | None:
        """The one asked last."""
        return self.detail.approvals[-1] if self.detail is not None and self.detail.approvals else None

    @property
    def place(self) -> str:
        """As a person types it: the run, and the step if it is about one."""
        return self.run_id if self.step is None else f"{self.run_id}#{self.step}"


def load_run(store: Store, run_id: str, *, writes: bool = False) -> Subject:
    run = store.run(run_id)
    return Subject(
        at=store.now(),
        run=run,
        writes=load_writes(store, run_id) if writes else (),
        decision=_waiting(store, run, None),
        freezes=tuple(store.freezes()),
        agent=run["agent"],
    )


def load_operation(store: Store, run_id: str, step: str, *, writes: bool = False) -> Subject:
    detail = store.operation(run_id, step)
    args = _args(store, detail)
    return Subject(
        at=store.now(),
        run=detail.run,
        detail=detail,
        writes=load_writes(store, run_id) if writes else (),
        decision=_waiting(store, detail.run, step, detail.decisions),
        freezes=tuple(store.freezes()),
        args=args,
        origins=_origins(store, detail, args) if detail.operation["status"] == "awaiting_approval" else {},
        tool=detail.operation["tool"],
        agent=detail.run["agent"],
    )


def _args(store: Store, detail: OperationDetail) -> Any:
    for event in detail.events:
        if "args" in event.data:
            return event.data["args"]
    first = detail.operation["intent_seq"]  # so many attempts that the intent is not among the newest events
    events = [] if first is None else store.events(detail.run["run_id"], after=first - 1, limit=1)
    return events[0].data.get("args") if events else None


def _origins(store: Store, detail: OperationDetail, args: Any) -> dict[str, str]:
    """Where the words of each argument stand in what the run was told before: the newest place of each."""
    wanted = {str(k): v for k, v in args.items() if isinstance(v, str) and len(v) >= WORDS} if args else {}
    found: dict[str, str] = {}
    before = min((e.seq for e in detail.events), default=1)
    while wanted and before > 1 and detail.run["head_seq"] - before < EVENTS_AT_MOST:
        page = store.events(detail.run["run_id"], before=before, limit=200)
        if not page:
            break
        for event in reversed(page):
            if event.kind in {"tool_result", "observation", "outcome", "signal", "run_started"}:
                texts = list(_texts(event.data))
                where = "the run's own input" if event.kind == "run_started" else f"step {event.step}, {event.kind}"
                for name in [n for n, words in wanted.items() if any(words in text for text in texts)]:
                    found[name] = where
                    del wanted[name]
        before = page[0].seq
    return found


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)


def load_writes(store: Store, run_id: str) -> tuple[Row, ...]:
    found: list[Row] = []
    after = 0
    while len(found) < WRITES_AT_MOST and (
        page := store.timeline(run_id, after=after, limit=1000, effect="write")
    ):  # fmt: skip
        found += [call_of(row) for row in page]
        after = page[-1]["first_seq"]
    return tuple(found)


def with_writes(store: Store, subject: Subject) -> Subject:
    """The same, ready for an undo."""
    return subject if subject.run is None else replace(subject, writes=load_writes(store, subject.run_id))


def call_of(row: Row) -> Row:
    """The operation's half of a row of the timeline."""
    prefix = "operation_"
    return {k.removeprefix(prefix): v for k, v in row.items() if k.startswith(prefix)} | {"step": row["step"]}


def _waiting(store: Store, run: Row, step: str | None, known: Sequence[Row] = ()) -> Row | None:
    """The newest decision about the run, or about this step of it, that can still be taken back."""
    found = [d for d in known if d["status"] == "waiting"]
    if not found and (run["decision"] is not None or run["status"] == "waiting"):
        found = [
            d
            for d in store.waiting_decisions(limit=1000)
            if d["run_id"] == run["run_id"] and (step is None or d["step"] in (None, step))
        ]
    return max(found, key=lambda d: d["seq"]) if found else None


def load_group(store: Store, places: Sequence[tuple[str, str]]) -> Subject:
    """Operations that are decided about together, as they stand now."""
    rows = tuple(store.operations_of(places[:GROUP_AT_MOST]))
    tools = {row["tool"] for row in rows}
    return Subject(
        at=store.now(),
        members=rows,
        batch=_batch_of(store, places),
        freezes=tuple(store.freezes()),
        tool=tools.pop() if len(tools) == 1 else None,
    )


def members_of(store: Store, group: Row, now: int) -> list[tuple[str, str]]:
    """The operations behind one row of the inbox, oldest first."""
    found: list[tuple[str, str]] = []
    after = None
    while len(found) < GROUP_AT_MOST:
        page = store.inbox_members(group, now, limit=500, after=after)
        found += [(row["run_id"], row["step"]) for row in page.rows if row["step"] is not None]
        after = page.older
        if after is None:
            break
    return found[:GROUP_AT_MOST]


def _batch_of(store: Store, places: Sequence[tuple[str, str]]) -> Row | None:
    """The newest batch with an operation of the group: it may have been opened for one class of them only."""
    group = set(places)
    for batch in store.batches(limit=5):
        _, members = store.batch(batch["batch_no"], limit=1000)
        if any((m["run_id"], m["step"]) in group for m in members):
            return batch
    return None


# --- undoing -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Undo:
    """What a scope comes to: what would be undone, in that order, and what would stand."""

    scope: str
    undone: tuple[Row, ...]
    standing: tuple[Row, ...]
    """In scope, and without a compensation."""


class BadScope(ValueError):
    """What was typed names nothing that can be undone."""


def undo_of(subject: Subject, typed: str) -> Undo:
    """`step 3`, `transaction billing`, `after 3` or `run`."""
    what, _, rest = typed.strip().partition(" ")
    rest = rest.removeprefix("step").strip()
    standing = [row for row in subject.writes if _stands(row)]
    if what == "run" and not rest:
        scope, rows = "run", standing
    elif what == "step" and rest:
        scope, rows = f"operation:{rest}", [row for row in standing if row["step"] == rest]
    elif what == "after" and rest:
        place = _position(rest)
        scope, rows = f"after:{rest}", [row for row in standing if _position(row["step"]) > place]
    elif what == "transaction" and rest:
        scope = f"transaction:{rest}"
        rows = [row for row in standing if _within(row["scope"] or "", rest)]
    else:
        raise BadScope(f"{typed!r} is not a scope: give `step 3`, `after 3`, `transaction NAME` or `run`.")
    rows.sort(key=lambda row: row["outcome_seq"] or 0, reverse=True)
    return Undo(
        scope,
        tuple(row for row in rows if row["compensate"] is not None),
        tuple(row for row in rows if row["compensate"] is None),
    )


def _within(scope: str, name: str) -> bool:
    """A scope is recorded as `outer@2/inner@4`, with the step after which each began; people leave that out."""
    if scope == name or scope.startswith(f"{name}/"):
        return True
    return any(name in {part, part.rpartition("@")[0]} for part in scope.split("/"))


def _stands(row: Row) -> bool:
    """It happened, by this run's own hand, and nothing has undone it."""
    return (
        row["status"] == "succeeded"
        and row["effect"] == "write"
        and row["compensates"] is None
        and row["refers_to"] is None
    )


def _position(step: str) -> tuple[int, ...]:
    return tuple(int(part) for part in step.lstrip("c").split("~")[0].split(".") if part.isdigit())
