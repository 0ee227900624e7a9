"""Names, options and help of every command, and nothing else. A test holds docs/cli.md to it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from walkback_console.cli.completing import complete_run
from walkback_console.cli.options import (
    AsOption,
    JsonOption,
    PlaceArgument,
    RunArgument,
    Status,
    StepArgument,
    StoreOption,
    YesOption,
    duration,
    seconds,
    some_seconds,
)
from walkback_console.cli.root import app as app
from walkback_console.cli.root import command, session_of

# --- working -----------------------------------------------------------------------------------------------------


@command()
def work(
    ctx: typer.Context,
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE:APP", help="Where the App is, or a function that makes one: shop.agents:app."),
    ],
    concurrency: Annotated[int, typer.Option(min=1, max=10_000, metavar="N", help="How many runs at once.")] = 10,
    lease: Annotated[
        float,
        typer.Option(
            parser=some_seconds, metavar="SECONDS", help="A worker that is silent for so long is taken for lost."
        ),
    ] = 30.0,
    grace: Annotated[
        float,
        typer.Option(parser=seconds, metavar="SECONDS", help="How long steps under way may take to end at a stop."),
    ] = 30.0,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="Stop when no run can go on by itself.")] = False,
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="URL", show_default=False, help="In place of the address that the app names."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """A worker: carries runs on, until it is asked to stop. Any number of them can share a store.

    SIGTERM and Ctrl-C let steps under way end and hand their runs back; a second Ctrl-C ends at once.
    """
    from walkback_console.cli import working

    session = session_of(ctx, store, as_json)
    working.work(session, target, concurrency=concurrency, lease=lease, grace=grace, until_idle=until_idle)


# --- reading -----------------------------------------------------------------------------------------------------


@command()
def inbox(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="How many rows at most.")] = 50,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """What needs a person, most urgent first; alike things are one row."""
    from walkback_console.cli import reading

    reading.inbox(session_of(ctx, store, as_json), limit)


@command()
def runs(
    ctx: typer.Context,
    prefix: Annotated[str | None, typer.Argument(metavar="PREFIX", help="Only ids that begin with this.")] = None,
    status: Annotated[
        list[Status] | None, typer.Option(metavar="STATUS", help=f"May be given again. One of: {', '.join(Status)}.")
    ] = None,
    agent: Annotated[str | None, typer.Option(metavar="NAME", help="Only runs of this agent.")] = None,
    tag: Annotated[str | None, typer.Option(metavar="TAG", help="Only runs with this tag.")] = None,
    since: Annotated[
        int | None, typer.Option(parser=duration, metavar="AGE", help="Only runs started in the last 2h, 3d, ...")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="How many runs at most.")] = 50,
    after: Annotated[
        str | None, typer.Option(metavar="PLACE", help="Go on where a page ended: its `older`, as printed.")
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """A page of runs, newest first. With a PREFIX, in the order of ids."""
    from walkback_console.cli import reading

    statuses = [s.value for s in status or ()]
    reading.runs(session_of(ctx, store, as_json), prefix, statuses, agent, tag, since, limit, after)


@command()
def show(
    ctx: typer.Context,
    run: PlaceArgument,
    step: StepArgument = None,
    every: Annotated[bool, typer.Option("--all", help="Every step, not only the newest 50.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """One run: where it stands and why, and its steps. With a STEP, that one in full.

    For each call that is not settled: what it promised, its attempts, and the four answers of its recovery.
    """
    from walkback_console.cli import showing

    showing.show(session_of(ctx, store, as_json), run, step, every)


PathOption = Annotated[
    str | None, typer.Option("--path", metavar="PATH", help="Only this part of the state, such as order.items[3].")
]


@command()
def state(
    ctx: typer.Context,
    run: PlaceArgument,
    step: StepArgument = None,
    before: Annotated[bool, typer.Option("--before", help="The state before the step, not the one after it.")] = False,
    path: PathOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """What a run knew after a step, or before it; without a STEP, what it knows now."""
    from walkback_console.cli import states

    states.state(session_of(ctx, store, as_json), run, step, before, path)


@command()
def diff(
    ctx: typer.Context,
    run: PlaceArgument,
    step: StepArgument = None,
    other: Annotated[
        str | None, typer.Argument(metavar="STEP2", help="Compare the states after STEP and after STEP2.")
    ] = None,
    with_run: Annotated[
        str | None,
        typer.Option(
            "--with",
            metavar="RUN2",
            help="Compare with the state of another run after the same step, or STEP2 of it.",
            autocompletion=complete_run,
        ),
    ] = None,
    path: PathOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """What a step changed in the state of its run; or how two states differ."""
    from walkback_console.cli import states

    states.show_diff(session_of(ctx, store, as_json), run, step, other, with_run, path)


@command()
def events(
    ctx: typer.Context,
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A run's id, the beginning of one, or @store for the store's own log.",
            autocompletion=complete_run,
        ),
    ],
    after: Annotated[int, typer.Option(min=0, metavar="SEQ", help="Only events after this number.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as events happen, until Ctrl-C.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """The events of one run, in order; with --json, one object a line."""
    from walkback_console.cli import reading

    reading.events(session_of(ctx, store, as_json), run, after, follow)


@command()
def workers(
    ctx: typer.Context,
    every: Annotated[bool, typer.Option("--all", help="Also those that stopped, and those lost long ago.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Who works: workers, what they have and hold; open breakers, freezes and batches."""
    from walkback_console.cli import overview

    overview.workers(session_of(ctx, store, as_json), every)


@command()
def handover(
    ctx: typer.Context,
    since: Annotated[
        int | None,
        typer.Option(parser=duration, metavar="AGE", show_default="8h", help="How far to look back: 8h, 3d, ..."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="How many open things at most.")] = 50,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """For whoever comes next: what people did and decided, what is open and whose it is. Text to paste."""
    from walkback_console.cli import overview

    overview.handover(session_of(ctx, store, as_json), since, limit)


@command()
def stats(ctx: typer.Context, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """How many runs, events and snapshots there are, and what they take."""
    from walkback_console.cli import keeping

    keeping.stats(session_of(ctx, store, as_json))


# --- telling -----------------------------------------------------------------------------------------------------


@command()
def signal(
    ctx: typer.Context,
    run: RunArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the run waits for, or will: run.wait_for(NAME).")],
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="JSON", help="What the run gets with it, such as '{\"paid\": true}'."),
    ] = None,
    signal_id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="The same one twice counts once; without it, every call is a new one."),
    ] = None,
    claim: AsOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send a run a message. It is kept until a step waits for it."""
    from walkback_console.cli import acting

    acting.signal(session_of(ctx, store, as_json, claim), run, name, data, signal_id)


# --- checking ----------------------------------------------------------------------------------------------------


@command()
def doctor(ctx: typer.Context, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Check what the store and the console stand on, and say what to do.

    The SQLite library, the schema, permissions, file modes, whether this is a copy, the clock, the terminal.
    """
    from walkback_console.cli import doctor

    doctor.doctor(session_of(ctx, store, as_json))


@command()
def fsck(
    ctx: typer.Context,
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Check this run only.", autocompletion=complete_run)
    ] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Unpack every snapshot as well.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fold the event log again and report what does not agree.

    Finds rows, events and snapshots that were edited, added or removed behind the store's back.
    """
    from walkback_console.cli import keeping

    keeping.fsck(session_of(ctx, store, as_json), run, deep)


@command()
def audit(ctx: typer.Context, run: RunArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Verify one run's chain of events, and list who did what."""
    from walkback_console.cli import keeping

    keeping.audit(session_of(ctx, store, as_json), run)


# --- keeping -----------------------------------------------------------------------------------------------------


@command()
def backup(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to; never overwritten.")],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy a SQLite store to a new file while others write. The copy runs nothing until it is adopted."""
    from walkback_console.cli import keeping

    keeping.backup(session_of(ctx, store, as_json), file)


@command()
def prune(
    ctx: typer.Context,
    older_than: Annotated[
        int,
        typer.Option(parser=duration, metavar="AGE", show_default=False, help="Runs that finished before: 30d, 12h."),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    yes: YesOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Reduce finished runs to their audit trail. Never touches a run that waits for a person."""
    from walkback_console.cli import keeping

    keeping.prune(session_of(ctx, store, as_json), older_than, dry_run, yes)


@command()
def adopt(
    ctx: typer.Context,
    reason: Annotated[str, typer.Option(metavar="TEXT", show_default=False, help="Why; stored with the decision.")],
    yes: YesOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a copy or a restored backup run from here on. Only when the original is gone."""
    from walkback_console.cli import keeping

    keeping.adopt(session_of(ctx, store, as_json), reason, yes)


from walkback_console.cli import deciding_commands as deciding_commands  # noqa: E402  the order of the help
