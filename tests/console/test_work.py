"""`walkback work` with real processes: it carries runs to their end, stops when asked to, and says what is wrong."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.console.terminal import command, environment
from tests.support.proxy import CuttingProxy
from walkback import worker
from walkback_console.cli.commands import app as commands
from walkback_store import Store, open_store
from walkback_store.fsck import fsck
from walkback_store.machine.runs import StartRun
from walkback_store.values import encode

PATIENCE = 30.0
HOSTILE = "\x1b]52;c;ZXZpbA==\x07\u202e\x9b2J"

SHOP = """
import time
from pathlib import Path

import walkback as wb

HERE = Path(__file__).parent


@wb.tool(effect="write")
def pay(cents: int) -> str:
    (HERE / "paying").touch()
    while not (HERE / "go").exists():
        time.sleep(0.01)
    return f"paid {cents}"


@wb.tool(effect="write")
def thank() -> str:
    return "thanked"


@wb.agent
def buyer(run: wb.Run, cents: int) -> str:
    paid = run.call(pay, cents=cents)
    run.call(thank)
    return paid


app = wb.App(HERE / "shop.db", agents=[buyer])


class Made:
    app = app


def make() -> wb.App:
    return app


def make_another(name: str) -> wb.App:
    return app


def make_nothing() -> None:
    pass
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with a module `shop`, whose app keeps its store beside it. Paying takes until there is a file `go`."""
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def start(url: str | Path, run_id: str = "r1") -> None:
    with open_store(url) as store:
        store.do(
            StartRun(actor="service:test", run_id=run_id, agent="buyer", input={"cents": 5}, state=encode({}))
        )  # fmt: skip


@contextlib.contextmanager
def working(folder: Path, *args: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command("work", *args),
        cwd=folder,
        env=environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def work(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("work", *args),
        cwd=folder,
        env=environment(),
        text=True,
        capture_output=True,
        check=False,
        timeout=PATIENCE,
    )


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.02)


def the_worker(store: Store) -> dict[str, Any]:
    (row,) = store.workers()
    return row


# --- working -----------------------------------------------------------------------------------------------------


def test_a_worker_carries_a_run_to_its_end_and_goes_on_until_it_is_asked_to_stop(shop: Path) -> None:
    (shop / "go").touch()
    start(shop / "shop.db")
    with working(shop, "shop:app") as process, open_store(shop / "shop.db") as store:
        wait_until(lambda: store.run("r1")["status"] == "succeeded")
        assert store.events("r1")[-1].data["output"] == "paid 5"
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out) == (0, "")
        row = the_worker(store)
        assert row["status"] == "stopped"
        assert fsck(store).problems == []
    first, *_, last = err.splitlines()
    assert first.endswith(f"worker {row['worker']} works on {shop / 'shop.db'} with buyer v1; 10 runs at once")
    assert last.endswith(f"worker {row['worker']} stopped: SIGTERM")


def test_until_idle_returns_when_nothing_is_left_and_makes_the_store_if_there_is_none(shop: Path) -> None:
    done = work(shop, "shop:app", "--until-idle")
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1].endswith("stopped: nothing is left to do")
    (shop / "go").touch()
    start(shop / "shop.db")
    assert work(shop, "shop:app", "--until-idle").returncode == 0
    with open_store(shop / "shop.db", create=False) as store:
        assert store.run("r1")["status"] == "succeeded"


def test_json_says_when_it_works_and_when_it_stopped(shop: Path) -> None:
    done = work(shop, "shop:app", "--until-idle", "--json", "--concurrency", "3", "--lease", "7.5")
    started, stopped = (json.loads(line) for line in done.stdout.splitlines())
    assert (started["state"], started["agents"], started["store"]) == (
        "started", {"buyer": ["1"]}, str(shop / "shop.db"),
    )  # fmt: skip
    assert (started["concurrency"], started["lease"]) == (3, 7.5)
    assert stopped == {"state": "stopped", "worker": started["worker"], "why": "idle"}


@pytest.mark.parametrize("name", ["shop:app", "shop:Made.app", "shop:make"])
def test_the_app_is_an_attribute_one_further_down_or_what_a_function_makes(shop: Path, name: str) -> None:
    assert work(shop, name, "--until-idle").returncode == 0


def test_another_store_than_the_apps_own_is_named_before_or_after_the_command(shop: Path, store_url: str) -> None:
    (shop / "go").touch()
    start(store_url)
    assert work(shop, "shop:app", "--until-idle", "--store", store_url).returncode == 0
    with open_store(store_url) as store:
        assert store.run("r1")["status"] == "succeeded"
    before = [*command("--store", store_url), "work", "shop:app", "--until-idle"]
    subprocess.run(before, cwd=shop, env=environment(), check=True, capture_output=True)
    assert not (shop / "shop.db").exists()


def test_what_is_printed_or_logged_by_the_users_code_is_left_alone(shop: Path) -> None:
    (shop / "loud.py").write_text(
        "import logging, sys\n"
        "logging.basicConfig(level=logging.INFO, format='theirs %(message)s', stream=sys.stdout)\n"
        "from shop import app\n"
    )
    done = work(shop, "loud:app", "--until-idle")
    assert done.returncode == 0
    assert "theirs worker" in done.stdout
    assert done.stderr == ""


def test_a_worker_outlives_an_outage_of_its_database_and_does_not_fill_the_log_with_it(
    shop: Path, pg_url: str, pg_proxy: CuttingProxy
) -> None:
    (shop / "go").touch()
    with working(shop, "shop:app", "--store", pg_proxy.url) as process:
        with open_store(pg_url) as store:
            wait_until(lambda: len(store.workers()) == 1)
            pg_proxy.refuse(True)
            pg_proxy.cut_all()
            time.sleep(3)
            pg_proxy.refuse(False)
            start(pg_url)
            wait_until(lambda: store.run("r1")["status"] == "succeeded")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    warnings = [line.partition("WARNING: ")[2] for line in err.splitlines() if "WARNING: " in line]
    assert len(warnings) == len(set(warnings)), err


# --- stopping ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_step_under_way_is_finished_and_its_run_handed_back(shop: Path, number: int) -> None:
    start(shop / "shop.db")
    with working(shop, "shop:app") as process, open_store(shop / "shop.db") as store:
        wait_until((shop / "paying").exists)
        process.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):  # it waits for the step
            process.wait(0.5)
        (shop / "go").touch()
        assert process.wait(PATIENCE) == 0
        assert [(row["step"], row["operation_status"]) for row in store.timeline("r1")] == [("1", "succeeded")]
        run = store.run("r1")
        assert (run["status"], run["worker"]) == ("running", None)
        assert the_worker(store)["status"] == "stopped"
    assert work(shop, "shop:app", "--until-idle").returncode == 0
    with open_store(shop / "shop.db") as store:
        assert store.run("r1")["status"] == "succeeded"
        assert [row["operation_attempts"] for row in store.timeline("r1")] == [1, 1]


def test_a_step_that_takes_longer_than_the_grace_is_left_to_other_workers(shop: Path) -> None:
    start(shop / "shop.db")
    with working(shop, "shop:app", "--grace", "0.2") as process:
        wait_until((shop / "paying").exists)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert "WARNING: worker" in err
    assert "stops; others take over what is under way: r1" in err


def test_a_second_interrupt_ends_it_at_once(shop: Path) -> None:
    start(shop / "shop.db")
    with working(shop, "shop:app") as process:
        wait_until((shop / "paying").exists)
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "SIGINT: steps under way have 30 s to end" in err
    assert "ended at once" in err
    assert "Traceback" not in err


# --- what can be wrong -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("shop", "'shop' is not MODULE:APP, such as shop.agents:app."),
        (":app", "':app' is not MODULE:APP"),
        ("shop:", "'shop:' is not MODULE:APP"),
        ("nowhere:app", "there is no module 'nowhere', neither in "),
        ("shop.py:app", "Leave out the .py."),
        ("nowhere.agents:app", "there is no module 'nowhere'"),
        ("./shop.py:app", "'./shop.py' is not the name of a module."),
        ("shop:ap", "shop has no 'ap'. It has shop:app."),
        ("shop:Made.ap", "shop:Made has no 'ap'."),
        ("shop:HERE", "shop:HERE is a PosixPath, not an App or a function without arguments that makes one."),
        ("shop:buyer", "shop:buyer is an Agent, not an App"),
        ("shop:make_another", "shop:make_another is a function, not an App"),
        ("shop:make_nothing", "shop:make_nothing() gave None, not an App."),
    ],
)
def test_an_app_that_is_not_there_is_a_mistake_of_the_command_line(shop: Path, name: str, said: str) -> None:
    done = work(shop, name, "--until-idle")
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (shop / "shop.db").exists()


@pytest.mark.parametrize(
    ("source", "last"),
    [
        ("def broken():\n    1 / 0\nbroken()", "ZeroDivisionError: division by zero"),
        ("import not_installed", "ModuleNotFoundError: No module named 'not_installed'"),
        ("def f(:", "SyntaxError: invalid syntax"),
        ("import sys; sys.exit('no settings')", "SystemExit: no settings"),
        ("def app(): raise ValueError('no settings')", "ValueError: no settings"),
        (f"raise ValueError({HOSTILE!r})", "ValueError: ␛]52;c;ZXZpbA==␇<U+202E><U+009B>2J"),
    ],
)
def test_an_error_in_the_users_code_is_shown_with_its_own_traceback_and_no_other(
    tmp_path: Path, source: str, last: str
) -> None:
    (tmp_path / "mine.py").write_text(source)
    done = work(tmp_path, "mine:app", "--until-idle")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == last
    assert f'File "{tmp_path / "mine.py"}", line' in done.stderr
    for ours in ("walkback_console", "importlib"):
        assert ours not in done.stderr
    assert all(c == "\n" or c.isprintable() for c in done.stderr)


def test_a_name_full_of_escape_sequences_is_repeated_as_marks(tmp_path: Path) -> None:
    for name in (f"{HOSTILE}:app", f"os:{HOSTILE}", HOSTILE):
        done = work(tmp_path, name)
        assert done.returncode == 2
        assert all(c == "\n" or c.isprintable() for c in done.stderr), done.stderr


def test_a_store_that_cannot_be_opened_ends_with_three_and_says_where_its_address_came_from(shop: Path) -> None:
    file = shop / "notes.txt"
    file.write_text("shopping list " * 500)
    done = work(shop, "shop:app", "--store", str(file))
    assert done.returncode == 3
    assert "is not a Walkback store" in done.stderr
    assert "The address came from --store." in done.stderr
    (shop / "shop.db").write_text("shopping list " * 500)
    done = work(shop, "shop:app")
    assert done.returncode == 3
    assert "The address is the app's own" in done.stderr


def test_what_an_app_refuses_is_said_in_one_line(shop: Path) -> None:
    (shop / "mine.py").write_text(
        "import walkback as wb\nfrom shop import app as opened\nopened.store\nempty = wb.App('empty.db')\n"
    )
    done = work(shop, "mine:empty", "--until-idle")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "this app has no agents" in done.stderr
    done = work(shop, "mine:opened", "--until-idle", "--store", "other.db")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "the store is open already" in done.stderr


def test_nothing_runs_in_a_copy_until_it_is_adopted(shop: Path) -> None:
    start(shop / "shop.db")
    subprocess.run(command("backup", "copy.db", "--store", "shop.db"), cwd=shop, check=True, capture_output=True)
    done = work(shop, "shop:app", "--until-idle", "--store", "copy.db")
    assert done.returncode == 1
    assert "adopt" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (shop / "paying").exists()


@pytest.mark.parametrize(
    "option",
    [("--lease", "nan"), ("--lease", "0"), ("--lease", "inf"), ("--grace", "-1"), ("--concurrency", "0")],
)
def test_numbers_that_cannot_be_meant_are_refused(shop: Path, option: tuple[str, str]) -> None:
    assert work(shop, "shop:app", *option).returncode == 2


def test_what_the_runtime_warns_of_reaches_the_terminal_as_marks(tmp_path: Path) -> None:
    """The runtime logs the words of whatever goes wrong in it; here an agent raises something that it cannot handle."""
    (tmp_path / "mine.py").write_text(
        "import walkback as wb\n"
        "@wb.agent\n"
        f"def buyer(run: wb.Run, cents: int):\n    raise BaseException({HOSTILE!r})\n"
        "app = wb.App('mine.db', agents=[buyer])\n"
    )
    start(tmp_path / "mine.db")
    done = work(tmp_path, "mine:app", "--until-idle")
    assert done.returncode == 0
    assert "ERROR: run r1 could not be carried on" in done.stderr
    assert "BaseException: ␛]52;c;ZXZpbA==␇<U+202E><U+009B>2J" in done.stderr
    assert all(c == "\n" or c.isprintable() for c in done.stderr)


def test_the_defaults_of_the_options_are_those_of_the_runtime() -> None:
    import typer.main

    group: Any = typer.main.get_command(commands)
    defaults = {parameter.name: parameter.default for parameter in group.commands["work"].params}
    assert defaults["concurrency"] == worker.CONCURRENCY
    assert defaults["lease"] == worker.LEASE
    assert defaults["grace"] == worker.GRACE
