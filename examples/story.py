"""`make demo`: a short story about a run whose worker dies at the worst moment, told with real processes.

A ledger service keeps a book that the store cannot reach. A worker writes its intent, posts an invoice, and is killed
with SIGKILL after the ledger has booked it and before the answer came. What the record and the ledger together cannot
settle goes to a person; where they can, nobody is needed. And what was done for nothing is undone.

At a terminal it ends in the console, with the ledger and a worker alive, so that what is left can be solved from the
keyboard. Everything is left in a folder, so that you can go on with the `walkback` command yourself.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from examples import ledger
from examples.story_agents import app
from walkback_store.machine.people import RecordHappened
from walkback_store.machine.roles import GrantRole
from walkback_store.machine.store_wide import Freeze
from walkback_store.people import operator_of
from walkback_store.words import FreezeScope, Role

WIDTH = 78
PATIENCE = 30.0
ANN = "operator:ann"
APP = "examples.story_agents:app"
OURS = ("walkback.db", "walkback.db-wal", "walkback.db-shm", "workers.log", "ledger.jsonl")
HERE = Path(__file__).resolve().parent.parent
LOGGED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC (?P<level>[A-Z]+: )?(?P<text>.*)", re.DOTALL)
STARTED = re.compile(r"worker (?P<name>\S+) works on ")


class Narrator:
    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._chapter = 0
        self._bold = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else ("", "")

    def chapter(self, title: str) -> None:
        self._chapter += 1
        self.line("")
        self.line(f"{self._bold[0]}{self._chapter}. {title}{self._bold[1]}")

    def tell(self, text: str) -> None:
        for line in textwrap.wrap(" ".join(text.split()), WIDTH - 3):
            self.line(f"   {line}")

    def heard(self, who: str, text: str) -> None:
        head = f"   {who} | "
        indent = " " * (len(head) - 2) + "| "
        for line in textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=indent):
            self.line(line)

    def line(self, text: str) -> None:
        if not self._quiet:
            print(text, flush=True)


class Story:
    def __init__(self, folder: Path, narrator: Narrator, *, opens_console: bool = False) -> None:
        self.opens_console = opens_console
        self.folder = folder
        self.db = folder / "walkback.db"
        self.book = folder / "ledger.jsonl"
        self.log = folder / "workers.log"
        self.n = narrator
        self.ledger_url = ""
        self.workers = 0

    # --- processes -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def process(self, *args: str) -> Iterator[subprocess.Popen[str]]:
        """Ended with the block, however that ends."""
        child = subprocess.Popen(
            args,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=HERE,
            env={**os.environ, "LEDGER_URL": self.ledger_url},
        )
        try:
            yield child
        finally:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()

    @contextlib.contextmanager
    def worker(self, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
        """One run at a time, so that the story is told in order."""
        args = ("work", APP, "--concurrency", "1", *options)
        self.workers += 1
        self.show_command(*args)
        with self.process(*walkback_command(), "--store", str(self.db), *args) as child:
            yield f"worker {self.workers}", child

    def let_work(self) -> None:
        """Start a worker, and wait until nothing is left that it could do."""
        with self.worker("--until-idle") as (name, worker):
            said = (line for line in map(self.worth_telling, worker.stdout or ()) if line)
            for line, again in itertools.groupby(said):
                times = sum(1 for _ in again)
                self.n.heard(name, line if times == 1 else f"{line} ({times} times)")
            if worker.wait() != 0:
                raise SystemExit(f"{name} ended with exit code {worker.returncode}: see {self.log}")

    def worth_telling(self, line: str) -> str:
        """What an agent says, and of the worker's own log its name and its warnings. All of the log is kept."""
        logged = LOGGED.match(line)
        if logged is None:
            return line.rstrip()
        with self.log.open("a") as log:
            log.write(line)
        started = STARTED.match(logged["text"])
        if started is not None:
            return f"works as {started['name']}"
        return logged["text"].rstrip() if logged["level"] else ""

    def kill_when_booked(self, book_keeper: subprocess.Popen[str], order: str) -> None:
        """Start a worker; kill it once the ledger has booked the order, before it hears of that."""
        with self.worker() as (name, worker):
            for _ in range(2):  # how it is called, and that it calls the ledger
                self.n.heard(name, self.worth_telling(heard_first(worker)))
            while heard_first(book_keeper, worker).split() != ["wrote", order]:
                pass
            self.n.heard("ledger", f"order {order} is in the book; the answer is on its way")
            self.n.line(f"   $ kill -9 {worker.pid}")
            worker.send_signal(signal.SIGKILL)
            worker.wait()

    def walkback(self, *args: str) -> None:
        """Run the real command, and show what it says."""
        self.show_command(*args)
        environment = {**os.environ, "COLUMNS": str(WIDTH - 3)}
        done = subprocess.run(
            [*walkback_command(), "--store", str(self.db), *args],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        for line in (done.stdout + done.stderr).splitlines():
            self.n.line(f"   {line}".rstrip())
        if done.returncode != 0:
            raise SystemExit(f"walkback {args[0]} ended with exit code {done.returncode}: {done.stderr}")

    def show_command(self, *args: str) -> None:
        self.n.line("")
        self.n.line(f"   $ walkback {' '.join(args)}")

    @property
    def shown_db(self) -> str:
        try:
            return str(self.db.relative_to(Path.cwd()))
        except ValueError:
            return str(self.db)

    # --- the story -----------------------------------------------------------------------------------------------

    def tell(self) -> None:
        app.use_store(self.db)
        with self.process(sys.executable, "-m", "examples.ledger", str(self.book)) as book_keeper, app:
            self.ledger_url = heard_first(book_keeper).strip()
            self.set_the_scene()
            self.kill_at_the_worst_moment(book_keeper)
            self.take_over()
            self.resolve()
            self.recover_without_a_person(book_keeper)
            self.undo()
            self.finish()
            if self.opens_console:
                self.leave_trouble(book_keeper)
                self.open_console()

    def set_the_scene(self) -> None:
        self.n.chapter("Three runs are started")
        self.n.tell(
            """order-1001 is to be invoiced, order-1002 too (for a lot of money), and thanks-1003 writes a customer a
            mail. A ledger service is running; its book is a file that the store cannot reach."""
        )
        app.start("close_order", run_id="order-1001", tags=["demo"], order="1001", cents=12_000)
        app.start("close_order", run_id="order-1002", tags=["demo"], order="1002", cents=250_000)
        app.start("thank_customer", run_id="thanks-1003", tags=["demo"], order="1003")
        self.n.tell("Ann, on call, does not want any mail sent tonight:")
        me = operator_of(app.store)
        if me != ANN:  # who made the store is its admin; anybody else is a viewer until told otherwise
            app.store.do(GrantRole(actor=me, person=ANN, role=Role.APPROVER, reason="she is on call"))
        app.store.do(
            Freeze(actor=ANN, scope=FreezeScope.TOOL, name="send_mail", reason="the mail relay is being moved")
        )  # fmt: skip
        self.n.heard("ann", "freeze send_mail: the mail relay is being moved")

    def kill_at_the_worst_moment(self, book_keeper: subprocess.Popen[str]) -> None:
        self.n.chapter("A worker dies at the worst moment")
        self.control(search="down", answers="held")
        self.kill_when_booked(book_keeper, "1001")
        self.n.tell(
            """The effect has happened, and nobody was told. The intent is in the store; the outcome is not. And the
            ledger's search is down, so that nobody can ask."""
        )

    def take_over(self) -> None:
        self.n.chapter("Another worker takes over")
        self.let_work()
        self.n.tell(
            """It did not try again: that could have made a second invoice. It did not assume success either. What needs
            a person is in the inbox:"""
        )
        self.walkback("inbox")
        self.walkback("show", "order-1001")

    def resolve(self) -> None:
        self.n.chapter("A person looks, and decides")
        mine = self.invoices("1001")
        self.n.tell(f"Ann opens the ledger's book. Invoices for order 1001: {len(mine)}.")
        if len(mine) != 1:
            raise SystemExit("the story went wrong: the ledger should have booked this order once")
        step = app.store.operation("order-1001", "3").operation
        app.store.do(
            RecordHappened(
                actor=ANN,
                run_id="order-1001",
                step="3",
                seen=step["touched"],
                reason="found it in the book",
                evidence=f"in {self.book.name}: {json.dumps(mine[0])}",
                result={"invoice": mine[0]["invoice"]},
            )
        )
        self.n.heard("ann", "it happened: found it in the book")
        self.let_work()

    def recover_without_a_person(self, book_keeper: subprocess.Popen[str]) -> None:
        self.n.chapter("The same again, and nobody is needed")
        self.n.tell("The ledger's search is up again. Another order, another kill at the very same moment:")
        app.start("close_order", run_id="order-1004", tags=["demo"], order="1004", cents=4_500)
        self.control(answers="held")
        self.kill_when_booked(book_keeper, "1004")
        self.control()
        self.let_work()
        self.n.tell(
            f"""The second worker asked the ledger before it did anything else. Invoices for order 1004 in the book:
            {len(self.invoices("1004"))}. The record says why it went on:"""
        )
        recovery = next(event.data for event in app.store.events("order-1004") if event.kind == "recovery")
        for question in ("attempted", "acknowledged", "proven", "verdict"):
            self.n.line(f"     {question:<13} {recovery[question]}")

    def undo(self) -> None:
        self.n.chapter("What was done for nothing is undone")
        self.n.tell("The receipt of order 1005 cannot be sent, ever, and an invoice without one must not stand:")
        app.start("close_order", run_id="order-1005", tags=["demo"], order="1005", cents=9_900, to="nobody")
        self.let_work()
        self.walkback("show", "order-1005")
        self.n.tell("And in the ledger's book:")
        for line in ledger.lines(self.book)[-2:]:
            self.n.heard("ledger", json.dumps(line))

    def finish(self) -> None:
        self.n.chapter("The record")
        booked = sum("invoice" in line for line in ledger.lines(self.book))
        void = len(ledger.voided(self.book))
        self.n.tell(
            f"""The ledger's book has {booked} invoices, one for each order, and {void} of them is void. The store can
            prove every step of the way there:"""
        )
        self.walkback("runs")
        self.walkback("audit", "order-1001")
        self.walkback("fsck", "--deep")
        self.n.chapter("Now you")
        self.n.tell("order-1002 still waits for an approval. Everything is left where it is; look around:")
        self.n.line("")
        self.n.line(f"   export WALKBACK_STORE={self.shown_db}")
        self.n.line(f"   {command_shown()} inbox")
        self.n.line(f"   {command_shown()} show order-1002")
        self.n.line(f"   {command_shown()} events order-1004")
        self.n.line(f"   {command_shown()} doctor")
        self.n.line("")

    def leave_trouble(self, book_keeper: subprocess.Popen[str]) -> None:
        """Two more orders that were booked, which nobody knows."""
        self.n.chapter("Two more, for you")
        self.n.tell("The ledger's search is down once more, and two workers are killed in the middle of an invoice:")
        for order, cents in (("1006", 48_000), ("1007", 31_500)):
            app.start("close_order", run_id=f"order-{order}", tags=["demo"], order=order, cents=cents)
            self.control(search="down", answers="held")
            self.kill_when_booked(book_keeper, order)
            self.let_work()
        self.control()
        self.n.tell("Now the search is up again, so that verify can tell.")

    def open_console(self) -> None:
        self.n.chapter("The console opens")
        self.n.tell(
            """A worker is alive and the ledger answers. Enter opens what is selected, v looks again, a approves after
            you have read it all, U lifts a freeze, ? lists every key, q leaves."""
        )
        self.n.line("")
        if sys.stdin.isatty():
            input("   Press Enter. ")
        with self.log.open("ab") as log, self.quietly("work", APP, "--concurrency", "4", log=log):
            command = [*walkback_command(), "--store", str(self.db)]
            subprocess.run(command, check=False, env={**os.environ, "WALKBACK_ENV": "demo"})

    @contextlib.contextmanager
    def quietly(self, *args: str, log: IO[bytes]) -> Iterator[None]:
        """A worker that says what it has to say to the log; asked to stop at the end, and waited for."""
        child = subprocess.Popen(
            [*walkback_command(), "--store", str(self.db), *args],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=HERE,
            env={**os.environ, "LEDGER_URL": self.ledger_url},
            start_new_session=True,
        )
        try:
            yield
        finally:
            child.terminate()
            try:
                child.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def invoices(self, order: str) -> list[ledger.Body]:
        return [line for line in ledger.lines(self.book) if line.get("order") == order]

    def control(self, **how: str) -> None:
        ledger.post(self.ledger_url, "control", how)


def heard_first(speaker: subprocess.Popen[str], *others: subprocess.Popen[str]) -> str:
    """The next line of a process; the end of the story when another ends before it comes."""
    with selectors.DefaultSelector() as selector:
        for child in (speaker, *others):
            if child.stdout is not None:
                selector.register(child.stdout, selectors.EVENT_READ, child)
        ready = [key.data for key, _ in selector.select(PATIENCE)]
    line = speaker.stdout.readline() if speaker.stdout is not None and speaker in ready else ""
    if not line:
        raise SystemExit("the story went wrong: a process ended, or said nothing")
    return line


def walkback_command() -> list[str]:
    """The command of this environment, whether or not it is on the PATH."""
    script = Path(sys.executable).with_name("walkback")
    return [str(script)] if script.exists() else [sys.executable, "-m", "walkback_console"]


def command_shown() -> str:
    if shutil.which("walkback"):
        return "walkback"
    script = Path(sys.executable).with_name("walkback")
    with contextlib.suppress(ValueError):
        return str(script.relative_to(Path.cwd()))
    return str(script)


def start_afresh(folder: Path) -> None:
    """Remove what an earlier telling left, and nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in OURS:
        (folder / name).unlink(missing_ok=True)
    (folder / OURS[-1]).touch()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m examples.story", description="Tell a short story with real processes."
    )
    parser.add_argument("--folder", type=Path, default=Path("demo"), help="where the store and the ledger's book go")
    parser.add_argument("--quiet", action="store_true", help="print only where things are")
    parser.add_argument("--headless", action="store_true", help="tell the story, and do not open the console")
    options = parser.parse_args()
    folder = options.folder.absolute()
    start_afresh(folder)
    at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    story = Story(folder, Narrator(options.quiet), opens_console=at_terminal and not options.headless)
    try:
        story.tell()
    except BrokenPipeError:  # whoever listened has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more as it exits
        raise SystemExit(1) from None
    print(f"The store is {story.shown_db}; the ledger's book and the log are beside it.")


if __name__ == "__main__":
    main()
