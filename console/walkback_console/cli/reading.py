"""Commands that look: inbox, runs, events. None of them changes anything, or creates a store."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from walkback_console.cli import documents
from walkback_console.cli.finding import known_run, place, shell
from walkback_console.cli.printing import Column, Printer, as_json, joined, t, word
from walkback_console.cli.session import Session, now
from walkback_console.plain_words import FOREVER, age, ago, clock, left, many, moment
from walkback_store.errors import PreconditionFailed
from walkback_store.inbox import APPROVAL
from walkback_store.machine.base import STORE
from walkback_store.paging import MAX_PAGE
from walkback_store.queries import RunFilter

if TYPE_CHECKING:
    from rich.text import Text

    from walkback_store import Store
    from walkback_store.log import Event, Row
    from walkback_store.paging import Count

FACTS_AT_MOST = 600
"""Characters of an event's facts that are shown; `--json` has the rest."""


# --- inbox -------------------------------------------------------------------------------------------------------


def inbox(session: Session, limit: int) -> None:
    with session.open() as store:
        at = now()
        rows = store.inbox(at, limit=limit)
        counts = store.inbox_counts(at)
        freezes = store.freezes()
    if session.as_json:
        as_json(
            {
                "items": [documents.inbox_item(r) for r in rows],
                "counts": {kind: count.n for kind, count in counts.items()},
                "freezes": [documents.freeze(f) for f in freezes],
            }
        )
        return
    out = Printer()
    out.line(t(_total(list(counts.values())), "bold"))
    show_freezes(out, freezes, at)
    if not rows:
        return
    out.blank()
    columns = (Column("why", 19), Column("since", 11), Column("n", 5, right=True), Column("what", 39))
    out.table(columns, [_inbox_row(row, at) for row in rows])
    if len(rows) == limit:
        out.line(t(f"Only the first {limit} rows; --limit shows more.", "bright_black"))
    out.blank()
    out.line("Look closer:  ", t(f"walkback show {shell(rows[0]['run_id'])}"))


def _total(counts: Sequence[Count]) -> str:
    total, more = sum(count.n for count in counts), any(count.more for count in counts)
    if not total:
        return "Nothing needs a person."
    return "1 thing needs a person." if (total, more) == (1, False) else f"{total:,}{'+' * more} things need a person."


def _inbox_row(row: Row, at: int) -> list[Text]:
    """What and how much, by which tool and why there, and on a line of its own the run, to be copied."""
    head = t(row["description"] or row["tool"] or row["detail"] or row["agent"])
    stake = row["stake"] if row["n"] == 1 else f"the oldest {row['stake']}"
    what = [joined(head, ", ", t(stake, "bold")) if row["stake"] else head]
    more = [row["tool"]] if row["tool"] and row["description"] else []
    if row["kind"] == APPROVAL:
        more.append(f"rule: {row['why']}")
    elif row["why"] != row["kind"]:
        more.append(row["why"])
    more += [row["error_class"]] if row["error_class"] else []
    more += [f"owner: {row['owner']}"] if row["owner"] else []
    if more:
        what.append(t(", ".join(more), "bright_black"))
    what.append(t(row["run_id"]) if row["step"] is None else joined(t(row["run_id"]), " #", t(row["step"])))
    if row["n"] > 1:
        what.append(t(f"and {many(row['n'] - 1, 'other')}"))
    when = left(row["deadline"], at) if (row["deadline"] or FOREVER) < FOREVER else age(row["since"], at)
    return [t(row["kind"], "bold yellow"), t(when), t(f"{row['n']:,}"), lines(what)]


def lines(parts: Sequence[Text]) -> Text:
    from rich.text import Text

    return Text("\n").join(parts)


def show_freezes(out: Printer, freezes: Sequence[Row], at: int) -> None:
    """On every list until lifted: nothing else explains why nothing happens."""
    for f in freezes:
        what = "everything" if f["name"] is None else f"{f['scope']} {f['name']}"
        if f["until"] is None:
            head, by = "FROZEN ", f"({f['by']}, {ago(f['at'], at)})"
        else:  # nobody froze it: it failed too often, and it will be tried again
            head, by = "BREAKER OPEN ", f"({ago(f['at'], at)}); {_next_try(f, at)}"
        out.line(t(head, "bold red"), t(what, "bold"), t(f": {f['reason']} {by}"))


def _next_try(breaker: Row, at: int) -> str:
    if breaker["probe"] is not None:
        return f"{place(breaker['probe'])} is trying it now"
    return f"tried again {ago(breaker['until'], at)}" if breaker["until"] > at else "the next call tries it again"


# --- runs --------------------------------------------------------------------------------------------------------


def runs(
    session: Session,
    prefix: str | None,
    status: Sequence[str],
    agent: str | None,
    tag: str | None,
    since: int | None,
    limit: int,
    after: str | None,
) -> None:
    at = now()
    where = RunFilter(
        status=status, agent=agent, tag=tag, since=None if since is None else at - since, prefix=prefix
    )  # fmt: skip
    place = None if after is None else parse_place(after, by_id=prefix is not None)
    with session.open() as store:
        page = store.runs(where, limit=limit, after=place)
        count = store.count_runs(where)
        freezes = store.freezes()
    older = None if page.older is None else ":".join(str(part) for part in page.older)
    if session.as_json:
        document = {"runs": [documents.run(r) for r in page.rows], "count": count.n, "more": count.more, "older": older}
        as_json(document)
        return
    out = Printer()
    out.line(t("1 run" if str(count) == "1" else f"{count} runs", "bold"))
    show_freezes(out, freezes, at)
    if not page.rows:
        return
    out.blank()
    columns = (Column("run", 36), Column("agent", 8), Column("status", 14), Column("step", 4), Column("started", 8))
    out.table(columns, [_run_row(row, at) for row in page.rows])
    if older is not None:
        out.blank()
        out.line(t(f"Older ones: the same command with --after {shell(older)}", "bright_black"))


def _run_row(row: Row, at: int) -> list[Text]:
    status = [word(row["status"])]
    if row["why"]:
        status.append(t(row["why"], "bright_black"))
    elif row["waits_for"]:
        status.append(t(row["waits_for"], "bright_black"))
    return [t(row["run_id"]), t(row["agent"]), lines(status), t(position(row)), t(ago(row["created_at"], at))]


def position(row: Row) -> str:
    if row["last_step"] is None:
        return "-"
    return f"{row['position']} of {len(json.loads(row['plan']))}" if row["plan"] else str(row["last_step"])


def parse_place(text: str, *, by_id: bool) -> tuple[Any, ...]:
    if by_id:
        return (text,)
    try:
        created_at, run_no = (int(part) for part in text.split(":"))
    except ValueError as error:
        raise PreconditionFailed(
            f"{text!r} is not a place in the list; give the `older` of the page before."
        ) from error
    return created_at, run_no


# --- events ------------------------------------------------------------------------------------------------------


def events(session: Session, given: str, after: int, follow: bool) -> None:
    with session.open() as store:
        run_id = None if given == STORE else known_run(store, given)
        writer = _JsonLines() if session.as_json else _Lines()
        if not follow:
            _drain(store, run_id, after, writer)
            return
        with store.feed() as feed:
            while True:
                after = _drain(store, run_id, after, writer)
                feed.wait()


def _drain(store: Store, run_id: str | None, after: int, writer: _Lines | _JsonLines) -> int:
    while page := store.events(run_id, after=after, limit=MAX_PAGE):
        for event in page:
            writer.write(event)
        after = page[-1].seq
    writer.flush()
    return after


class _JsonLines:
    def write(self, event: Event) -> None:
        as_json(documents.event(event), indent=None)

    def flush(self) -> None:
        pass


class _Lines:
    """A line a head, facts below it. The day is said when it changes, so that the time of day is enough."""

    def __init__(self) -> None:
        self._out = Printer()
        self._day = ""

    def write(self, event: Event) -> None:
        day = f"{moment(event.at):%Y-%m-%d}"
        if day != self._day:
            self._out.line(t(f"{day} UTC", "bright_black"))
            self._day = day
        at_step = t(f" #{event.step}" if event.step else "")
        self._out.line(
            t(f"{event.seq:>5}  {clock(event.at)}  "), t(event.kind, "bold"), at_step, t(f"  {event.actor}", "cyan")
        )  # fmt: skip
        said = facts_of(event)
        if said:
            self._out.facts([(" " * 5, t(said, "bright_black"))])

    def flush(self) -> None:
        self._out.flush()


def facts_of(event: Event) -> str:
    if event.body is None:
        return "(pruned: only its hash is left)"
    data = {k: v for k, v in documents.value(event.data).items() if v not in (None, {}, [], "")}
    if isinstance(data.get("snapshot"), str):
        data["snapshot"] = data["snapshot"].partition(":")[0]  # its digest is for machines
    said = ", ".join(f"{k}: {v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)}" for k, v in data.items())
    if len(said) <= FACTS_AT_MOST:
        return said
    return f"{said[:FACTS_AT_MOST]} ... ({len(said):,} characters; --json shows all of them)"
