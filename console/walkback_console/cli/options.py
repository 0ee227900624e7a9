"""Options and arguments that commands have in common, and what completes them in a shell."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from walkback_console.cli.completing import complete_run
from walkback_console.plain_words import parse_duration

A_DAY = 86_400


class Status(StrEnum):
    """The words of `walkback_store.words.RunStatus`, repeated so that `--help` need not load the store."""

    RUNNING = "running"
    WAITING = "waiting"
    PAUSED = "paused"
    NEEDS_OPERATOR = "needs_operator"
    COMPENSATING = "compensating"
    COMPENSATED = "compensated"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class RoleName(StrEnum):
    """The words of `walkback_store.words.Role`."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    APPROVER = "approver"
    ADMIN = "admin"


def duration(text: str) -> int:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= A_DAY:  # NaN is not between anything
        raise typer.BadParameter(f"{text!r} is not a number of seconds up to {A_DAY:,}")
    return found


def some_seconds(text: str) -> float:
    if not (found := seconds(text)):
        raise typer.BadParameter("it has to be above 0")
    return found


StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        show_default=False,
        help="A path, sqlite:///path or postgresql://host/database. Else WALKBACK_STORE, else ./walkback.db.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON for scripts instead of text for people.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
RunArgument = Annotated[
    str,
    typer.Argument(metavar="RUN", help="A run's id, or the beginning of one.", autocompletion=complete_run),
]
PlaceArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run's id or the beginning of one; RUN#STEP names a step of it.",
        autocompletion=complete_run,
    ),
]
StepArgument = Annotated[
    str | None,
    typer.Argument(metavar="STEP", help="A step of the run: 7, or 6.1 in a parallel block, or c7, which undoes 7."),
]
AsOption = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="NAME",
        show_default=False,
        help="Who you say you are; kept beside who the system says you are.",
    ),
]
ReasonOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; stored with the decision.")]
ReadOnlyOption = Annotated[
    bool, typer.Option("--read-only", help="Only look: the console offers nothing that changes anything.")
]
