"""The `walkback` command: what a person or a script can ask of a store without opening the console.

`commands` is the surface (names, options, help), `reading`, `keeping` and `working` do the work, and `printing` is the
one way out for text. Until a command is known only `commands` is loaded: `walkback --help` waits for nothing else.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Sequence

FINE, REFUSED, USAGE, UNREACHABLE, NOT_WRITTEN, INTERRUPTED = 0, 1, 2, 3, 4, 130
"""Exit codes, as docs/cli.md lists them."""


def main(args: Sequence[str] | None = None) -> None:
    """The entry point; never returns. Errors of the store are one line on stderr, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, io.UnsupportedOperation):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    given = sys.argv[1:] if args is None else list(args)
    try:
        if not _opened_console(given):
            from walkback_console.cli.commands import app

            app(given, prog_name="walkback")
    except Exception as error:
        code = INTERRUPTED if _interrupted(error) else _told(error)
        if code is None:
            raise
        sys.exit(code)


def _opened_console(args: Sequence[str]) -> bool:
    from walkback_console.cli import opening
    from walkback_console.cli.session import Session

    if not opening.is_terminal() or (given := opening.only_console(args)) is None:
        return False
    session = Session(given.get("store"), False, given.get("claim"))
    opening.open_console(session, None, read_only="read_only" in given)
    return True


def _interrupted(error: BaseException | None) -> bool:
    """Ctrl-C in the middle of a statement: closing a connection that is still busy can raise something else on top."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _told(error: Exception) -> int | None:
    """Say what went wrong, if it is something a person can be told; the exit code for it."""
    from walkback_console.cli.session import exit_code_of
    from walkback_console.safe_text import safe

    code = exit_code_of(error)
    if code is not None:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            for line in (str(error), *getattr(error, "__notes__", ())):
                print(f"walkback: {safe(line)}", file=sys.stderr)
            for line in getattr(error, "lines", ()):
                print(safe(line), file=sys.stderr)
    return code
