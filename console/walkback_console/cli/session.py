"""One command's hold on the store: which address, opened how, and what each error means for the exit code."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from walkback_console.cli import NOT_WRITTEN, REFUSED, UNREACHABLE, USAGE

if TYPE_CHECKING:
    from walkback_store import Store


class Explained(Exception):
    """Why a command ends here, in words for whoever called it; `lines` go below them as they are."""

    def __init__(self, message: str, exit_code: int, lines: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.lines = lines


class NotConfirmed(Explained):
    """The person said no, or nobody could be asked."""


@dataclass(frozen=True, slots=True)
class Given:
    """What was said before the command's name."""

    store: str | None = None
    claim: str | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """What every command was given: `--store` (None when not given), `--json` and `--as`."""

    store_option: str | None
    as_json: bool
    claim: str | None = None

    @property
    def url(self) -> str:
        from walkback_store.opening import choose_url

        return choose_url(self.store_option)

    def where_from(self) -> str:
        if self.store_option is not None:
            return "--store"
        return "WALKBACK_STORE" if os.environ.get("WALKBACK_STORE") else "the default, ./walkback.db"

    @contextmanager
    def open(self) -> Iterator[Store]:
        """The store, which must exist: no command creates one by looking."""
        from sqlalchemy.exc import DBAPIError

        from walkback_store import open_store
        from walkback_store.errors import CannotOpen, StoreError, Unreachable

        try:
            store = open_store(self.url, create=False)
        except (CannotOpen, Unreachable) as error:
            error.add_note(
                f"The address came from {self.where_from()}. Name another with --store or WALKBACK_STORE; a store is "
                "made when an agent first uses it."
            )
            raise
        with store:
            try:
                yield store
            except DBAPIError as error:
                driver = error.orig if isinstance(error.orig, BaseException) else error
                known = store.backend.translate(driver)
                raise known or StoreError(f"the database refused: {str(driver).splitlines()[0]}") from error


def exit_code_of(error: Exception) -> int | None:
    """None for what is not ours to explain: a bug, which should be seen whole."""
    from walkback_store.errors import (
        CannotOpen,
        CommitUnknown,
        DiskFull,
        ReadOnly,
        StoreBusy,
        StoreError,
        TooSlow,
        Unreachable,
    )

    if isinstance(error, Explained):
        return error.exit_code
    if isinstance(error, CannotOpen | TooSlow | Unreachable):
        return UNREACHABLE
    if isinstance(error, StoreBusy | ReadOnly | DiskFull | CommitUnknown):
        return NOT_WRITTEN
    return REFUSED if isinstance(error, StoreError) else None


def now() -> int:
    return time.time_ns() // 1000


def confirm(question: str, *, yes: bool) -> None:
    """Ask on the terminal, unless `--yes` was given. Where nobody can be asked, that is an error, not a yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise NotConfirmed("this needs a confirmation, and there is nobody to ask: give --yes.", USAGE)
    import typer

    if not typer.confirm(question, default=False, err=True):
        raise NotConfirmed("nothing was changed.", REFUSED)
