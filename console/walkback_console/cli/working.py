"""`walkback work`: a worker process. The one command that loads the runtime, and code that is not ours."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any

# Before the user's folder is on the path, so that nothing in it is taken for one of these.
from walkback.app import App
from walkback.errors import WalkbackError
from walkback.worker import Worker, worker_name
from walkback_console.cli import INTERRUPTED, REFUSED, USAGE
from walkback_console.cli.printing import as_json
from walkback_console.cli.session import Explained, Session
from walkback_console.plain_words import many
from walkback_console.safe_text import safe
from walkback_store.errors import CannotOpen, Unreachable

log = logging.getLogger("walkback")
SAME_LINE_EVERY = 10.0
"""Seconds between two warnings that say the same."""
EXAMPLE = "such as shop.agents:app"


def work(
    session: Session, target: str, *, concurrency: int, lease: float, grace: float, until_idle: bool
) -> None:  # fmt: skip
    app = find_app(target)
    with logging_to_stderr():
        try:
            if session.store_option is not None:
                app.use_store(session.store_option)
            name = worker_name()
            worker = app.worker(concurrency=concurrency, lease=lease, name=name)
        except WalkbackError as refused:
            raise Explained(str(refused), REFUSED) from refused
        except (CannotOpen, Unreachable) as error:
            error.add_note(_where_from(session))
            raise
        with app:
            where = str(getattr(app.store.backend, "path", getattr(app.store.backend, "where", "")))
            agents = app.crew.versions()
            listed = ", ".join(f"{agent} v{version}" for agent in sorted(agents) for version in agents[agent])
            about = {"store": where, "agents": agents, "concurrency": concurrency, "lease": lease}
            with stopped_by_signals(worker, grace) as received:
                log.info("worker %s works on %s with %s; %s at once", name, where, listed, many(concurrency, "run"))
                if session.as_json:
                    as_json({"state": "started", "worker": name, **about}, indent=None)
                worker.work(until_idle=until_idle, grace=grace)
                why = received[0] if received else "idle"
                log.info("worker %s stopped: %s", worker.name, "nothing is left to do" if why == "idle" else why)
            if session.as_json:
                as_json({"state": "stopped", "worker": worker.name, "why": why}, indent=None)


def _where_from(session: Session) -> str:
    if session.store_option is not None:
        return "The address came from --store."
    return (
        "The address is the app's own; if it names none, WALKBACK_STORE, else ./walkback.db. --store goes before all."
    )


@contextmanager
def stopped_by_signals(worker: Worker, grace: float) -> Iterator[list[str]]:
    """The names of the signals that asked it to stop. A second SIGINT ends the process where it stands."""
    received: list[str] = []

    def stop(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if name == "SIGINT" and name in received:
            _say_at_once("a second SIGINT: ended at once. Other workers take over what was under way.")
            os._exit(INTERRUPTED)
        if not received:
            _say_at_once(f"{name}: steps under way have {grace:g} s to end; then their runs are handed back.")
        received.append(name)
        worker.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say_at_once(text: str) -> None:
    """From inside a signal handler, where whoever was interrupted may be in the middle of writing a line."""
    os.write(2, f"{_clock(time.time())} {text}\n".encode())


# --- the app -----------------------------------------------------------------------------------------------------


def find_app(target: str) -> App:
    """The app that MODULE:APP names, imported from the current folder first."""
    name, colon, path = target.partition(":")
    if not (name and colon and path):
        raise Explained(f"{target!r} is not MODULE:APP, {EXAMPLE}.", USAGE)
    if not all(part.isidentifier() for part in name.split(".")):
        raise Explained(f"{name!r} is not the name of a module. Name it as `import` does, {EXAMPLE}.", USAGE)
    module = _imported(name)
    found = _attribute(module, path)
    if isinstance(found, App):
        return found
    if not callable(found) or not _takes_nothing(found):
        raise Explained(
            f"{target} is {_a(found)}, not an App or a function without arguments that makes one.{_apps_in(module)}",
            USAGE,
        )
    try:
        made = found()
    except (Exception, SystemExit) as error:
        raise _broken(f"{target} could not make an app", error) from error
    if not isinstance(made, App):
        raise Explained(f"{target}() gave {_a(made)}, not an App.", USAGE)
    return made


def _imported(name: str) -> ModuleType:
    here = str(Path.cwd())
    if sys.path[:1] != [here]:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            hint = " Leave out the .py." if name.endswith(".py") else ""
            raise Explained(f"there is no module {missing!r}, neither in {here} nor installed.{hint}", USAGE) from error
        raise _broken(f"{name} could not be imported", error) from error


def _attribute(module: ModuleType, path: str) -> object:
    found: object = module
    seen = module.__name__
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise Explained(f"{seen} has no {part!r}.{_apps_in(module)}", USAGE) from error
        seen += f".{part}" if ":" in seen else f":{part}"
    return found


def _apps_in(module: ModuleType) -> str:
    apps = [f"{module.__name__}:{name}" for name, value in vars(module).items() if isinstance(value, App)]
    return f" It has {', '.join(apps)}." if apps else ""


def _a(found: object) -> str:
    kind = type(found).__name__
    return f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}" if found is not None else "None"


def _takes_nothing(found: Any) -> bool:
    try:
        inspect.signature(found).bind()
    except (TypeError, ValueError):
        return False
    return True


def _broken(what: str, error: BaseException) -> Explained:
    """With the traceback of their own code: ours, and the import machinery, is of no use to them."""
    lines = "".join(traceback.format_exception(type(error), error, _theirs(error.__traceback__))).rstrip("\n")
    return Explained(f"{what}:", REFUSED, lines.split("\n"))


def _theirs(tb: TracebackType | None) -> TracebackType | None:
    while tb is not None and tb.tb_frame.f_code.co_filename in {__file__, importlib.__file__}:
        tb = tb.tb_next
    while tb is not None and tb.tb_frame.f_code.co_filename.startswith("<frozen importlib"):
        tb = tb.tb_next
    return tb


# --- the log -----------------------------------------------------------------------------------------------------


@contextmanager
def logging_to_stderr() -> Iterator[None]:
    """Unless their code has set up logging: then the lines go where it sends them, made safe all the same."""
    log.addFilter(_make_safe)
    level, handler = log.level, logging.StreamHandler()
    if level == logging.NOTSET:
        log.setLevel(logging.INFO)
    handler.setFormatter(_Lines())
    handler.addFilter(_Seldom())
    theirs = bool(logging.getLogger().handlers or log.handlers)
    if not theirs:
        logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        log.removeFilter(_make_safe)
        log.setLevel(level)
        logging.getLogger().removeHandler(handler)


def _make_safe(record: logging.LogRecord) -> bool:
    """Run ids, names and messages of errors come from the store, and from whoever wrote to it."""
    record.msg, record.args = safe(record.getMessage()), ()
    if record.exc_info:
        record.exc_text = _safe_lines("".join(traceback.format_exception(*record.exc_info)).rstrip("\n"))
    return True


def _safe_lines(text: str) -> str:
    return "\n".join(safe(line) for line in text.split("\n"))


class _Seldom(logging.Filter):
    """The same line once in a while is enough: a worker that cannot reach its store says so at every turn."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        said = record.getMessage()
        due = record.created >= self._said.get(said, 0.0) + SAME_LINE_EVERY
        if due:
            self._said = {line: at for line, at in self._said.items() if at > record.created - SAME_LINE_EVERY}
            self._said[said] = record.created
        return due or record.levelno < logging.WARNING


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname}: " if record.levelno != logging.INFO else ""
        line = f"{_clock(record.created)} {level}{safe(record.getMessage())}"
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        return f"{line}\n{_safe_lines(record.exc_text)}" if record.exc_text else line


def _clock(at: float) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(at))} UTC"
