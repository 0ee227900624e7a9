"""`make demo`: a short story about a run whose worker dies at the worst moment, told with real processes.

A ledger service keeps a book that the store cannot reach. A worker writes its intent, posts an invoice, and is killed
with SIGKILL after the ledger has booked it and before the answer came. What the record cannot settle goes to a person.

Everything is left in a folder, so that you can go on with the `walkback` command yourself.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from walkback_store import Store, open_store
from walkback_store.machine.people import RecordHappened
from walkback_store.machine.runs import StartRun
from walkback_store.machine.store_wide import Freeze
from walkback_store.values import encode
from walkback_store.words import FreezeScope

WIDTH = 78
PATIENCE = 30.0
SHOP, ANN = "service:shop", "operator:ann"
OURS = ("walkback.db", "walkback.db-wal", "walkback.db-shm", "ledger.jsonl")
HERE = Path(__file__).resolve().parent.parent


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
    def __init__(self, folder: Path, narrator: Narrator) -> None:
        self.folder = folder
        self.db = folder / "walkback.db"
        self.book = folder / "ledger.jsonl"
        self.n = narrator
        self.ledger_url = ""

    # --- processes -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def process(self, module: str, *args: str) -> Iterator[subprocess.Popen[str]]:
        """Ended with the block, however that ends."""
        child = subprocess.Popen(
            [sys.executable, "-m", module, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=HERE,
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

    def worker(self, name: str) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
        return self.process("examples.story_worker", name, str(self.db), self.ledger_url)

    def let_work(self, name: str) -> None:
        """Start a worker, and wait until nothing is left that it could do."""
        with self.worker(name) as worker:
            for line in worker.stdout or ():
                self.n.heard(name, line.rstrip())
            if worker.wait() != 0:
                raise SystemExit(f"{name} ended with exit code {worker.returncode}")

    def walkback(self, *args: str) -> None:
        """Run the real command, and show what it says."""
        self.n.line("")
        self.n.line(f"   $ walkback --store {self.shown_db} {' '.join(args)}")
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

    @property
    def shown_db(self) -> str:
        try:
            return str(self.db.relative_to(Path.cwd()))
        except ValueError:
            return str(self.db)

    # --- the story -----------------------------------------------------------------------------------------------

    def tell(self) -> None:
        with self.process("examples.ledger", str(self.book)) as ledger, open_store(self.db) as store:
            self.ledger_url = heard_first(ledger).strip()
            self.set_the_scene(store)
            self.kill_at_the_worst_moment(ledger)
            self.take_over()
            self.resolve(store)
            self.finish()

    def set_the_scene(self, store: Store) -> None:
        self.n.chapter("Three runs are started")
        self.n.tell(
            """order-1001 is to be invoiced, order-1002 too (for a lot of money), and thanks-1003 writes a customer a
            mail. A ledger service is running; its book is a file that the store cannot reach."""
        )
        for run_id, agent, order in (
            ("order-1001", "close_order", {"order": "1001", "cents": 12_000}),
            ("order-1002", "close_order", {"order": "1002", "cents": 250_000}),
            ("thanks-1003", "thank_customer", {"order": "1003"}),
        ):
            state = encode({"order": None})
            store.do(StartRun(actor=SHOP, run_id=run_id, agent=agent, input=order, state=state, tags=["demo"]))
        self.n.tell("Ann, on call, does not want any mail sent tonight:")
        store.do(
            Freeze(actor=ANN, scope=FreezeScope.TOOL, name="send_mail", reason="the mail relay is being moved")
        )  # fmt: skip
        self.n.heard("ann", "freeze send_mail: the mail relay is being moved")

    def kill_at_the_worst_moment(self, ledger: subprocess.Popen[str]) -> None:
        self.n.chapter("A worker dies at the worst moment")
        with self.worker("worker-1") as worker:
            self.n.heard("worker-1", heard_first(worker).rstrip())
            booked = heard_first(ledger, worker).split()
            self.n.heard("ledger", f"order {booked[1]} is in the book; the answer is on its way")
            worker.send_signal(signal.SIGKILL)
            worker.wait()
        self.n.tell(
            """kill -9. The effect has happened, and nobody was told. The intent is in the store; the outcome is not."""
        )

    def take_over(self) -> None:
        self.n.chapter("Another worker takes over")
        self.let_work("worker-2")
        self.n.tell(
            """It did not try again: that could have made a second invoice. It did not assume success either. What needs
            a person is in the inbox:"""
        )
        self.walkback("inbox")
        self.walkback("show", "order-1001")

    def resolve(self, store: Store) -> None:
        self.n.chapter("A person looks, and decides")
        booked = [json.loads(line) for line in self.book.read_text().splitlines()]
        mine = [invoice for invoice in booked if invoice["order"] == "1001"]
        self.n.tell(f"Ann opens the ledger's book. Invoices for order 1001: {len(mine)}.")
        if len(mine) != 1:
            raise SystemExit("the story went wrong: the ledger should have booked this order once")
        step = store.operation("order-1001", "3").operation
        store.do(
            RecordHappened(
                actor=ANN,
                run_id="order-1001",
                step="3",
                seen=step["touched"],
                reason="found it in the book",
                evidence=f"line 1 of {self.book.name}: {json.dumps(mine[0], sort_keys=True)}",
                result={"invoice": "inv-1001"},
            )
        )
        self.n.heard("ann", "it happened: found it in the book")
        self.let_work("worker-3")

    def finish(self) -> None:
        self.n.chapter("The record")
        booked = len(self.book.read_text().splitlines())
        self.n.tell(f"The ledger's book has {booked} invoice. The store can prove every step of the way there:")
        self.walkback("runs")
        self.walkback("audit", "order-1001")
        self.walkback("fsck", "--deep")
        self.n.chapter("Now you")
        self.n.tell("order-1002 still waits for an approval. Everything is left where it is; look around:")
        self.n.line("")
        self.n.line(f"   export WALKBACK_STORE={self.shown_db}")
        self.n.line(f"   {command_shown()} inbox")
        self.n.line(f"   {command_shown()} show order-1002")
        self.n.line(f"   {command_shown()} events order-1001")
        self.n.line(f"   {command_shown()} doctor")
        self.n.line("")


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
    options = parser.parse_args()
    folder = options.folder.absolute()
    start_afresh(folder)
    story = Story(folder, Narrator(options.quiet))
    try:
        story.tell()
    except BrokenPipeError:  # whoever listened has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more as it exits
        raise SystemExit(1) from None
    print(f"The store is {story.shown_db}; the ledger's book is beside it.")


if __name__ == "__main__":
    main()
