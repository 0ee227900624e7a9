"""Commands about more than one run: who works (`workers`), and what whoever comes next has to know (`handover`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from walkback_console.cli import documents
from walkback_console.cli.finding import shell
from walkback_console.cli.printing import Column, Printer, as_json, t
from walkback_console.cli.reading import show_freezes
from walkback_console.cli.session import Session
from walkback_console.people_words import did, who
from walkback_console.plain_words import DAY, HOUR, age, ago, is_silent, iso, left, many, utc
from walkback_store.machine.base import STORE
from walkback_store.paging import MAX_PAGE
from walkback_store.words import BatchStatus, WorkerStatus

if TYPE_CHECKING:
    from rich.text import Text

    from walkback_store import Store
    from walkback_store.log import Event, Row

SHIFT = 8 * HOUR
STATUS_STYLES = {"alive": "green", "lost": "bold red", "silent": "bold red", "stopped": "bright_black"}


# --- workers -----------------------------------------------------------------------------------------------------


def workers(session: Session, every: bool) -> None:
    with session.open() as store:
        at = store.now()
        holds = store.holding()
        found = store.workers(limit=MAX_PAGE)
        freezes = store.freezes()
        batches = [b for b in store.batches() if b["status"] == BatchStatus.OPEN]
    shown = [w for w in found if every or _matters(w, holds, at)]
    if session.as_json:
        as_json(
            {
                "workers": [documents.worker(w, holds.get(w["worker"], 0)) for w in shown],
                "freezes": [documents.freeze(f) for f in freezes if f["until"] is None],
                "breakers": [documents.freeze(f) for f in freezes if f["until"] is not None],
                "batches": [documents.batch(b) for b in batches],
            }
        )
        return
    out = Printer()
    silent = sum(is_silent(w, at) for w in found)
    alive = sum(w["status"] == WorkerStatus.ALIVE for w in found) - silent
    out.line(t(f"{many(alive, 'worker')} alive." if alive else "No worker is alive: no run moves.", "bold"))
    if silent:
        out.line(t(f"{many(silent, 'worker')} silent for longer than the lease: gone, or cut off.", "bold red"))
    if not alive:
        out.line(t("Start one:  walkback work MODULE:APP", "bright_black"))
    show_freezes(out, freezes, at)
    for b in batches:
        out.line(t("BATCH ", "bold yellow"), t(_batch(b, at)))
    if shown:
        out.blank()
        columns = (
            Column("worker", 20), Column("status", 7), Column("runs", 4, True), Column("last beat", 9),
            Column("where and what", 24),
        )  # fmt: skip
        out.table(columns, [_worker_row(w, holds.get(w["worker"], 0), at) for w in shown])
    if len(shown) < len(found):
        out.blank()
        out.line(t(f"{many(len(found) - len(shown), 'worker')} that ended; --all shows them.", "bright_black"))


def _matters(worker: Row, holds: dict[str, int], at: int) -> bool:
    """One that is alive, that still has runs in its name, or whose loss somebody may want to know of today."""
    if worker["status"] == WorkerStatus.ALIVE or worker["worker"] in holds:
        return True
    return bool(worker["status"] == WorkerStatus.LOST and (worker["ended_at"] or 0) > at - DAY)


def _worker_row(worker: Row, held: int, at: int) -> list[Text]:
    agents = ", ".join(f"{name} v{'/'.join(versions)}" for name, versions in sorted(worker["agents"].items()))
    beat = ago(worker["beat_at"], at) if worker["beat_at"] else "never"
    where = f"{worker['host']} pid {worker['pid']}, {agents or 'no agents'}"
    status = "silent" if is_silent(worker, at) else worker["status"]
    return [t(worker["worker"]), t(status, STATUS_STYLES.get(status, "")), t(held or ""), t(beat), t(where)]


def _batch(batch: Row, at: int) -> str:
    return (
        f"{batch['batch_no']}: {batch['action']}, {batch['released']:,} of {batch['total']:,} released "
        f"({batch['by']}, {ago(batch['at'], at)}): {batch['reason']}"
    )


# --- handover ----------------------------------------------------------------------------------------------------


def handover(session: Session, since: int | None, limit: int) -> None:
    since = SHIFT if since is None else since
    with session.open() as store:
        at = store.now()
        people = list(_people(store, at - since))
        rows = store.inbox(at, limit=limit)
        counts = store.inbox_counts(at)
        freezes = store.freezes()
        waiting = store.waiting_decisions(limit=MAX_PAGE)
    if session.as_json:
        as_json(
            {
                "since": iso(at - since),
                "until": iso(at),
                "people": [documents.event(e) | {"did": did(e)} for e in people],
                "open": [documents.inbox_item(row) for row in rows],
                "counts": {kind: count.n for kind, count in counts.items()},
                "freezes": [documents.freeze(f) for f in freezes],
                "waiting": [documents.decision(d) for d in waiting],
            }
        )
        return
    out = Printer()
    out.paste(f"Handover, {utc(at - since)} to {utc(at)}")
    sections = (
        ("In force", [_freeze(f, at) for f in freezes]),
        ("Decided, and still to be carried out", [_waiting(d, at) for d in waiting]),
        ("Open", [_open(row, at) for row in rows]),
        ("What people did", [_did(e) for e in people]),
    )
    for title, lines in sections:
        out.blank()
        out.paste(title)
        for line in lines or ("nothing",):
            out.paste(f"- {line}")
    total = sum(count.n for count in counts.values())
    shown = sum(row["n"] for row in rows)
    if shown < total:
        out.blank()
        out.paste(f"{total - shown:,} more are open: walkback inbox")


def _people(store: Store, since: int) -> Iterator[Event]:
    """Oldest first."""
    found: list[Event] = []
    before = None
    while page := store.people_since(since, limit=MAX_PAGE, before=before):
        found += page
        before = (page[-1].at, page[-1].pos)
    yield from reversed(found)


def _did(event: Event) -> str:
    where = "" if event.run_id == STORE else f" {event.run_id}" + (f" #{event.step}" if event.step else "")
    reason = event.data.get("reason")
    return f"{utc(event.at)}  {who(event)} {did(event)}{where}" + (f": {reason}" if reason else "")


def _freeze(row: Row, at: int) -> str:
    what = "everything" if row["name"] is None else f"{row['scope']} {row['name']}"
    if row["until"] is not None:
        return f"breaker open: {what}, {ago(row['at'], at)}: {row['reason']}"
    lift = f"walkback unfreeze {row['freeze_no']}"
    return f"frozen: {what}, by {row['by']}, {ago(row['at'], at)}: {row['reason']} (to lift: {lift})"


def _waiting(row: Row, at: int) -> str:
    step = f" #{row['step']}" if row["step"] else ""
    due = f"due {ago(row['not_before'], at)}" if row["not_before"] > at else "due; no worker has taken it yet"
    back = f"walkback undo {shell(row['run_id'])}"
    return f"{row['action']} {row['run_id']}{step}, by {row['by']}, {due} (to take it back: {back})"


def _open(row: Row, at: int) -> str:
    what = row["description"] or row["tool"] or row["detail"] or row["agent"]
    parts: list[Any] = [row["kind"], what]
    if row["stake"]:
        parts.append(row["stake"])
    where = row["run_id"] if row["step"] is None else f"{row['run_id']} #{row['step']}"
    parts.append(where if row["n"] == 1 else f"{where} and {many(row['n'] - 1, 'other')}")
    parts.append(f"owner {row['owner']}" if row["owner"] else "nobody owns it")
    parts.append(left(row["deadline"], at) if row["deadline"] is not None else f"for {age(row['since'], at)}")
    return ", ".join(parts)


__all__: Sequence[str] = ["handover", "workers"]
