"""What stands above every screen: how much needs a person, who works, what is held up, what was decided and waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.text import Text

from walkback_console.actions import Who
from walkback_console.deciding import frozen_name
from walkback_console.plain_words import SECOND, age, is_silent, many, moment
from walkback_console.safe_text import safe

if TYPE_CHECKING:
    from walkback_store import Store
    from walkback_store.log import Row
    from walkback_store.paging import Count

ORDER = (
    "compensation_failed", "unknown", "duplicate_suspected", "diverged", "stuck", "drift", "budget_spent", "review",
    "approval",
)  # fmt: skip


NAME = 30


@dataclass(frozen=True, slots=True)
class Overview:
    at: int = 0
    counts: dict[str, Count] = field(default_factory=dict)
    alive: int = 0
    silent: int = 0
    """They count as alive until another worker declares them lost, but have not been heard of for longer than that."""
    lost: int = 0
    freezes: tuple[Row, ...] = ()
    decisions: tuple[Row, ...] = ()


def load(store: Store) -> Overview:
    now = store.now()
    workers = store.workers(limit=1000)
    return Overview(
        at=now,
        counts=store.inbox_counts(now),
        alive=sum(w["status"] == "alive" and not is_silent(w, now) for w in workers),
        silent=sum(is_silent(w, now) for w in workers),
        lost=sum(w["status"] == "lost" for w in workers),
        freezes=tuple(store.freezes()),
        decisions=tuple(store.waiting_decisions(limit=50)),
    )


def first_line(where: str, environment: str, who: Who, read_age: int | None, now: int, width: int) -> Text:
    """Store, environment, operator and role, age of the last successful read, UTC time; the store gives way first."""
    claim = f' as "{who.claim}"' if who.claim else ""
    person = f"{who.name}{claim} ({who.role})"
    fresh = "opening" if read_age is None else f"read {read_age // SECOND} s ago"
    clock = f"{moment(now):%H:%M:%S} UTC"
    parts = [environment] if environment else []
    rest = " · ".join([*parts, person, fresh, clock])
    room = max(8, width - len(safe(rest)) - 3)
    shown = safe(where)
    if len(shown) > room:  # its end tells stores apart
        shown = f"...{shown[-(room - 3) :]}"
    text = Text.assemble((shown, "strong"), " · ")
    for part in parts:
        text.append(Text.assemble((safe(part), "unsure"), " · "))
    stale = read_age is not None and read_age > 3 * SECOND
    return text.append(Text.assemble(safe(person), " · ", (fresh, "bad" if stale else "dim"), " · ", (clock, "dim")))


def _name(text: str) -> str:
    """A name for the heading, which must not outgrow the screen; `:workers` has all of it."""
    shown = safe(text)
    return shown if len(shown) <= NAME else f"{shown[: NAME - 3]}..."


def second_line(found: Overview, *, kinds: bool = True) -> Text:
    """Counts per kind, workers alive, open breakers, freezes; with words, so that it reads without colours."""
    if not found.at:
        return Text("reading ...", "dim")  # and not that nothing needs you
    total = sum(count.n for count in found.counts.values())
    more = any(count.more for count in found.counts.values())
    head = "nothing needs you" if not total else f"{total:,}{'+' * more} {'needs' if total == 1 else 'need'} you"
    text = Text.assemble((head, "unsure" if total else "good"))
    each = [f"{found.counts[kind]} {kind}" for kind in ORDER if kind in found.counts]
    if kinds and each:
        text.append(Text(f": {', '.join(each)}"))
    workers = f"{many(found.alive, 'worker')} alive" if found.alive else "NO WORKER ALIVE"
    workers += f" ({found.silent} silent)" if found.silent else ""
    text.append(Text.assemble(" · ", (workers, "plain" if found.alive else "bad")))
    breakers = [f for f in found.freezes if f["until"] is not None]
    frozen = [f for f in found.freezes if f["until"] is None]
    if breakers:
        names = ", ".join(_name(str(f["name"])) for f in breakers[:3])
        text.append(Text.assemble(" · ", (f"{many(len(breakers), 'breaker')} open: {names}", "bad")))
    if frozen:
        names = ", ".join(_name(frozen_name(f)) for f in frozen[:3])
        text.append(Text.assemble(" · ", (f"FROZEN: {names}{' ...' if len(frozen) > 3 else ''}", "bad")))
    return text


def decision_line(decisions: Sequence[Row], actor: str, now: int) -> Text | None:
    """The newest decision of this person's that can still be taken back, counted down."""
    mine = [d for d in decisions if d["by"] == actor]
    if not mine:
        return None
    last = max(mine, key=lambda d: d["decided_at"])
    wait = last["not_before"] - now
    place = safe(last["run_id"] + (f"#{last['step']}" if last["step"] else ""))
    when = (
        f"goes out in {-(-wait // SECOND)} s"
        if wait > 0
        else f"waits for a worker since {age(last['not_before'], now)}"
    )
    others = f" ({many(len(mine) - 1, 'other')} waiting)" if len(mine) > 1 else ""
    return Text.assemble(
        (f"You decided to {safe(last['action'])} {place}: it {when}. ", "busy"),
        ("u", "key"),
        (" takes it back", "busy"),
        others,
    )
