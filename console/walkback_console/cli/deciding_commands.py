"""Names, options and help of the commands that decide. Each is an action of `walkback_console.actions`."""

from __future__ import annotations

from typing import Annotated

import typer

from walkback_console.cli.completing import complete_run
from walkback_console.cli.options import (
    AsOption,
    JsonOption,
    PlaceArgument,
    ReadOnlyOption,
    ReasonOption,
    RoleName,
    RunArgument,
    StoreOption,
    YesOption,
)
from walkback_console.cli.root import command, session_of

CallArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN[#STEP]",
        help="The run, and the step if more than one of it is open. Ids may be shortened.",
        autocompletion=complete_run,
    ),
]
CallsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN[#STEP]...",
        help="The run, and the step if more than one of it is open; or several of them.",
        autocompletion=complete_run,
    ),
]
MaybeReasonOption = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why; stored with the decision.", show_default=False)
]


@command(name="open")
def open_(
    ctx: typer.Context,
    place: PlaceArgument,
    read_only: ReadOnlyOption = False,
    claim: AsOption = None,
    store: StoreOption = None,
) -> None:
    """Open the console at a run or a step of it. `walkback` alone opens it at the inbox."""
    from walkback_console.cli import opening

    opening.open_console(session_of(ctx, store, False, claim), place, read_only=read_only)


@command()
def approve(
    ctx: typer.Context,
    place: CallArgument,
    digest: Annotated[
        str,
        typer.Option(metavar="DIGEST", show_default=False, help="Only if this is still what is asked: its beginning."),
    ] = "",
    reason: MaybeReasonOption = "",
    yes: YesOption = False,
    claim: AsOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a call be made, with exactly the arguments that are shown. Can be taken back for 10 s."""
    from walkback_console.cli import deciding

    session = session_of(ctx, store, as_json, claim)
    deciding.decide(session, "approve", place, {"reason": reason}, yes=yes, digest=digest)


@command()
def deny(
    ctx: typer.Context,
    place: CallArgument,
    reason: ReasonOption,
    yes: YesOption = False,
    claim: AsOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Refuse an approval: the call is not made, and the agent is told why."""
    from walkback_console.cli import deciding

    deciding.decide(session_of(ctx, store, as_json, claim), "refuse", place, {"reason": reason}, yes=yes)


@command()
def resolve(
    ctx: typer.Context,
    places: CallsArgument,
    verify: Annotated[bool, typer.Option("--verify", help="Look again: a worker runs the tool's verify.")] = False,
    happened: Annotated[bool, typer.Option("--happened", help="It happened; needs --evidence and --reason.")] = False,
    absent: Annotated[
        bool, typer.Option("--absent", help="It did not, and is not tried again: the agent sees a failure.")
    ] = False,
    retry: Annotated[bool, typer.Option("--retry", help="It did not: a worker calls it again, in 10 s.")] = False,
    no_duplicate: Annotated[
        bool, typer.Option("--no-duplicate", help="A suspected second effect is none, or is taken care of.")
    ] = False,
    hand_over: Annotated[
        str | None,
        typer.Option("--hand-over", metavar="NAME", help="Leave it to somebody else; --reason is your note."),
    ] = None,
    evidence: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What shows that it happened: a number, a link, what you saw.")
    ] = None,
    result: Annotated[
        str | None, typer.Option(metavar="JSON", help="What the tool would have returned; the agent gets it.")
    ] = None,
    reason: MaybeReasonOption = "",
    yes: YesOption = False,
    claim: AsOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what became of a call whose outcome is unknown, or have it looked at again.

    One of --verify, --happened, --absent, --retry, --no-duplicate and --hand-over. Several operations can be named for
    all but --happened and --no-duplicate.
    """
    from walkback_console.cli import acting

    chosen = {
        "verify": verify, "happened": happened, "fail": absent, "retry": retry, "dismiss": no_duplicate,
        "handover": hand_over is not None,
    }  # fmt: skip
    answers = {"evidence": evidence, "result": result, "reason": reason, "owner": hand_over}
    acting.resolve(session_of(ctx, store, as_json, claim), places, chosen, answers, yes=yes)


@command()
def retry(
    ctx: typer.Context,
    places: CallsArgument,
    reason: ReasonOption,
    yes: YesOption = False,
    claim: AsOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """An unknown call did not happen: a worker makes it again, in 10 s. Several are a batch, one first."""
    from walkback_console.cli import acting

    acting.retry(session_of(ctx, store, as_json, claim), places, reason, yes=yes)


@command()
def batch(
    ctx: typer.Context,
    number: Annotated[int, typer.Argument(metavar="NUMBER", help="As `walkback workers` lists it.")],
    stop: Annotated[bool, typer.Option("--stop", help="What has not gone out yet stays as it is.")] = False,
    reason: MaybeReasonOption = "",
    yes: YesOption = False,
    claim: AsOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Look at a batch of retries, or stop it."""
    from walkback_console.cli import bulk

    bulk.batch(session_of(ctx, store, as_json, claim), number, stop, reason, yes=yes)


@command()
def compensate(
    ctx: typer.Context,
    place: CallArgument,
    reason: ReasonOption,
    step: Annotated[str | None, typer.Option(metavar="STEP", help="Undo this step only.")] = None,
    transaction: Annotated[
        str | None, typer.Option(metavar="NAME", help="Undo what was done in run.transaction(NAME).")
    ] = None,
    after: Annotated[str | None, typer.Option(metavar="STEP", help="Undo everything after this step.")] = None,
    yes: YesOption = False,
    claim: AsOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Undo what a run did, newest first: a step, a transaction, all after a step, or all of it. In 10 s."""
    from walkback_console.cli import deciding

    scopes = {"step": step, "transaction": transaction, "after": after}
    deciding.compensate(session_of(ctx, store, as_json, claim), place, scopes, {"reason": reason}, yes=yes)


@command()
def pause(
    ctx: typer.Context,
    run: RunArgument,
    reason: MaybeReasonOption = "",
    yes: YesOption = False,
    claim: AsOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """The run stops at its next boundary, until it is resumed."""
    from walkback_console.cli import deciding

    deciding.decide_run(session_of(ctx, store, as_json, claim), "pause", run, {"reason": reason}, yes=yes)


@command()
def resume(
    ctx: typer.Context,
    run: RunArgument,
    reason: ReasonOption,
    yes: YesOption = False,
    claim: AsOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """The run goes on: after a pause, after a review, or again after a failure."""
    from walkback_console.cli import deciding

    deciding.decide_run(session_of(ctx, store, as_json, claim), "resume", run, {"reason": reason}, yes=yes)


@command()
def cancel(
    ctx: typer.Context,
    run: RunArgument,
    reason: ReasonOption,
    yes: YesOption = False,
    claim: AsOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """The run ends at its next boundary. What it did stands; open approvals are withdrawn."""
    from walkback_console.cli import deciding

    deciding.decide_run(session_of(ctx, store, as_json, claim), "cancel", run, {"reason": reason}, yes=yes)


@command()
def undo(
    ctx: typer.Context,
    place: CallArgument,
    reason: MaybeReasonOption = "",
    yes: YesOption = False,
    claim: AsOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take back what was decided about a run and has not been carried out yet. Does not ask."""
    from walkback_console.cli import deciding

    deciding.decide_run(session_of(ctx, store, as_json, claim), "undo", place, {"reason": reason}, yes=yes)


WhatArgument = Annotated[
    list[str], typer.Argument(metavar="WHAT", help="tool NAME, agent NAME, service NAME, or everything.")
]


@command()
def freeze(
    ctx: typer.Context,
    what: WhatArgument,
    reason: ReasonOption,
    yes: YesOption = False,
    claim: AsOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop every call of a tool, by an agent, to a service, or all of them, at once."""
    from walkback_console.cli import deciding

    deciding.freeze(session_of(ctx, store, as_json, claim), "freeze", what, reason, yes=yes)


@command()
def unfreeze(
    ctx: typer.Context,
    what: WhatArgument,
    reason: ReasonOption,
    yes: YesOption = False,
    claim: AsOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Lift a freeze, or close a breaker: calls are made again."""
    from walkback_console.cli import deciding

    deciding.freeze(session_of(ctx, store, as_json, claim), "unfreeze", what, reason, yes=yes)


@command()
def note(
    ctx: typer.Context,
    place: PlaceArgument,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="The note.")],
    yes: YesOption = False,
    claim: AsOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Words for the next person, kept with the run. Does not ask."""
    from walkback_console.cli import deciding

    deciding.decide_run(session_of(ctx, store, as_json, claim), "note", place, {"reason": reason}, yes=yes)


@command()
def own(
    ctx: typer.Context,
    places: CallsArgument,
    to: Annotated[
        str | None, typer.Option(metavar="NAME", help="Hand it to somebody else, with a note: --reason.")
    ] = None,
    reason: MaybeReasonOption = "",
    yes: YesOption = False,
    claim: AsOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a run, so that others see that you are on it; or hand it to somebody. Does not ask."""
    from walkback_console.cli import acting

    acting.own(session_of(ctx, store, as_json, claim), places, to, reason, yes=yes)


@command()
def roles(ctx: typer.Context, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Who you are here, and who may do what."""
    from walkback_console.cli import people

    people.roles(session_of(ctx, store, as_json))


@command()
def grant(
    ctx: typer.Context,
    person: Annotated[str, typer.Argument(metavar="PERSON", help="An OS user or database role, or everyone.")],
    role: Annotated[RoleName, typer.Argument(metavar="ROLE", help=f"One of: {', '.join(RoleName)}.")],
    reason: ReasonOption,
    yes: YesOption = False,
    claim: AsOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what somebody may do from now on. Only an admin can."""
    from walkback_console.cli import people

    people.grant(session_of(ctx, store, as_json, claim), person, role.value, reason, yes=yes)
