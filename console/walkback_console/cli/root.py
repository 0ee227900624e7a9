"""`walkback` itself: what can be said before the name of a command, and what happens when none is given."""

from __future__ import annotations

import functools
import sys
from typing import Annotated

import typer

from walkback_console.cli.light import LightCommand, LightGroup
from walkback_console.cli.options import AsOption, ReadOnlyOption, StoreOption
from walkback_console.cli.session import Given, Session

app = typer.Typer(
    name="walkback",
    cls=LightGroup,
    help="Run agents; look at, decide about, check and keep what they did to the world. Alone, it opens the console.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
command = functools.partial(app.command, cls=LightCommand)


def session_of(ctx: typer.Context, store: str | None, as_json: bool, claim: str | None = None) -> Session:
    given: Given = ctx.obj
    return Session(given.store if store is None else store, as_json, given.claim if claim is None else claim)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"walkback {version('walkback')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def walkback(
    ctx: typer.Context,
    store: StoreOption = None,
    claim: AsOption = None,
    read_only: ReadOnlyOption = False,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version and exit.")
    ] = False,
) -> None:
    ctx.obj = Given(store, claim)
    if ctx.invoked_subcommand is not None:
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        typer.echo(ctx.get_help())
        return
    from walkback_console.cli import opening

    opening.open_console(Session(store, False, claim), None, read_only=read_only)
