"""Commands that check and keep a store: stats, fsck, audit, backup, prune, adopt."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from walkback_console.cli import REFUSED, documents
from walkback_console.cli.finding import known_run
from walkback_console.cli.printing import Column, Printer, as_json, progress, t
from walkback_console.cli.reading import facts_of, show_freezes
from walkback_console.cli.session import Session, confirm, now
from walkback_console.plain_words import clock, iso, many, size, utc
from walkback_console.whoami import operator_of
from walkback_store import fsck as checking
from walkback_store import housekeeping
from walkback_store.paging import MAX_PAGE
from walkback_store.words import Kind

if TYPE_CHECKING:
    from walkback_store import Store
    from walkback_store.log import Event

BY_PEOPLE = frozenset({Kind.OPERATOR_ACTION, Kind.APPROVAL_GIVEN, Kind.APPROVAL_REFUSED})


# --- statistics --------------------------------------------------------------------------------------------------


def stats(session: Session) -> None:
    with session.open() as store:
        found = housekeeping.statistics(store)
        statuses = store.status_counts()
        freezes = store.freezes()
        where = str(getattr(store.backend, "path", getattr(store.backend, "where", "")))
    rows = {k.removesuffix("_rows"): n for k, n in found.items() if k.endswith("_rows")}
    sizes = {k: n for k, n in found.items() if not k.endswith("_rows")}
    if session.as_json:
        runs = {k: c.n for k, c in statuses.items()}
        held = [documents.freeze(f) for f in freezes]
        as_json({"store": where, "runs": runs, "rows": rows, "bytes": sizes, "freezes": held})
        return
    out = Printer()
    out.line(t(where, "bold"), "  ", t(size(sizes.get("total_bytes", 0))))
    show_freezes(out, freezes, now())
    out.blank()
    if any(count.n for count in statuses.values()):
        out.facts([(status, t(count)) for status, count in statuses.items() if count.n])
        out.blank()
    out.facts([(name.replace("_", " "), t(f"{n:,}")) for name, n in rows.items() if n])
    out.blank()
    packed, unpacked = sizes.get("snapshot_bytes", 0), sizes.get("snapshot_bytes_unpacked", 0)
    kept = f"{size(packed)}, unpacked {size(unpacked)}" + (f" ({unpacked / packed:.0f} x)" if unpacked > packed else "")
    facts = [("snapshots take", t(kept)), ("event bodies take", t(size(sizes.get("event_body_bytes", 0))))]
    if sizes.get("free_bytes"):
        facts.append(("free for use again", t(size(sizes["free_bytes"]))))
    out.facts(facts)


# --- checking ----------------------------------------------------------------------------------------------------


def fsck(session: Session, given: str | None, deep: bool) -> None:
    with session.open() as store:
        run_id = None if given is None else known_run(store, given)
        count = store.count_runs()
        total = None if count.more else count.n
        with progress("checking runs") as bar:
            step = None if bar is None else lambda done: bar(done, None if total is None else max(done, total))
            report = checking.fsck(store, run_id, deep=deep, progress=step)
    problems = [{"run": p.run_id, "what": p.what} for p in report.problems]
    if session.as_json:
        counts = {"runs": report.runs, "events": report.events, "snapshots": report.snapshots}
        as_json({"clean": report.clean, **counts, "deep": deep, "problems": problems})
    else:
        out = Printer()
        looked_at = f"{many(report.runs, 'run')}, {many(report.events, 'event')}, {many(report.snapshots, 'snapshot')}"
        verdict = t("clean", "bold green") if report.clean else t(many(len(problems), "problem"), "bold red")
        out.line(verdict, t(f"  {looked_at} checked"))
        for p in problems:
            out.line("  ", t(p["run"], "bold"), ": ", t(p["what"]))
        if problems:
            out.line(
                t("Stop the workers, keep a copy of the store as it is, and compare with a backup: docs/store.md.")
            )  # fmt: skip
    if not report.clean:
        raise typer.Exit(REFUSED)


def audit(session: Session, given: str) -> None:
    with session.open() as store:
        run_id = known_run(store, given)
        report = checking.fsck(store, run_id)
        actors: Counter[str] = Counter()
        people: list[Event] = []
        last = None
        for event in _every_event(store, run_id):
            actors[event.actor] += 1
            last = event
            if event.kind in BY_PEOPLE:
                people.append(event)
    head = last.hash.hex() if last is not None else None
    problems = [p.what for p in report.problems]
    if session.as_json:
        as_json(
            {
                "run": run_id,
                "whole": report.clean,
                "events": report.events,
                "head": head,
                "problems": problems,
                "actors": dict(actors),
                "people": [documents.event(e) for e in people],
            }
        )
    else:
        out = Printer()
        verdict = t("whole", "bold green") if report.clean else t("NOT WHOLE", "bold red")
        out.line(t(run_id, "bold"), "  ", verdict)
        for problem in problems:
            out.line("  ", t(problem, "red"))
        facts = [("events", t(f"{report.events:,} in the chain")), ("head", t(head or "none"))]
        facts += [
            ("by" if not i else "", t(f"{name}, {many(n, 'event')}")) for i, (name, n) in enumerate(_most(actors))
        ]
        out.facts(facts)
        if people:
            out.blank()
            rows = [[t(e.seq), t(clock(e.at)), t(e.actor), t(facts_of(e) or e.kind)] for e in people]
            out.table(
                (Column("event", 5, True), Column("time UTC", 12), Column("who", 14), Column("decided", 20)), rows
            )
    if not report.clean:
        raise typer.Exit(REFUSED)


def _most(actors: Counter[str]) -> list[tuple[str, int]]:
    return sorted(actors.items(), key=lambda item: (-item[1], item[0]))


def _every_event(store: Store, run_id: str) -> list[Event]:
    found: list[Event] = []
    after = 0
    while page := store.events(run_id, after=after, limit=MAX_PAGE):
        found += page
        after = page[-1].seq
    return found


# --- keeping -----------------------------------------------------------------------------------------------------


def backup(session: Session, file: Path) -> None:
    with session.open() as store, progress("copying pages") as bar:
        path = housekeeping.backup(store, file, bar)
    count = path.stat().st_size
    if session.as_json:
        as_json({"file": str(path), "bytes": count})
        return
    out = Printer()
    out.line("Copied to ", t(path, "bold"), t(f" ({size(count)})."))
    out.line(t("It can be read at once; nothing runs in it until someone adopts it.", "bright_black"))


def prune(session: Session, older_than: int, dry_run: bool, yes: bool) -> None:
    before = now() - older_than
    with session.open() as store:
        actor = operator_of(store)
        done = would = housekeeping.prune(store, before, actor, dry_run=True)
        if would.runs and not dry_run:
            confirm(
                f"{many(would.runs, 'run')} that finished before {utc(before)} will lose {_losing(would)}; the audit "
                "events stay. This cannot be undone. Prune?",
                yes=yes,
            )
            with progress("pruning runs") as bar:
                step = None if bar is None else lambda n: bar(n, max(n, would.runs))
                done = housekeeping.prune(store, before, actor, step)
    if session.as_json:
        pruned = {"runs": done.runs, "bodies": done.bodies, "snapshots": done.snapshots}
        as_json({"finished_before": iso(before), "dry_run": dry_run, **pruned})
        return
    out = Printer()
    if not done.runs:
        out.line(t(f"No run that finished before {utc(before)} can be pruned."))
    elif dry_run:
        out.line("Would prune ", t(many(done.runs, "run"), "bold"), t(f", with {_losing(done)}. Nothing was changed."))
    else:
        out.line("Pruned ", t(many(done.runs, "run"), "bold"), t(f", with {_losing(done)}. Audit events are kept."))


def _losing(pruned: housekeeping.Pruned) -> str:
    return f"{many(pruned.snapshots, 'snapshot')} and {many(pruned.bodies, 'event body', 'event bodies')}"


def adopt(session: Session, reason: str, yes: bool) -> None:
    with session.open() as store:
        actor = operator_of(store)
        confirm(
            "Workers will run what this store holds. If the original still runs too, effects happen twice. Adopt?",
            yes=yes,
        )
        epoch = housekeeping.adopt(store, actor, reason)
    if session.as_json:
        as_json({"adopted": True, "epoch": epoch, "by": actor})
        return
    Printer().line("Adopted by ", t(actor, "bold"), t(f". Epoch {epoch}: no fence given before holds any more."))
