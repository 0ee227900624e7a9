"""docs/agents.md names what there is, with its numbers, and its example runs."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import walkback as wb
from walkback import execution, worker
from walkback.drivers import base
from walkback.testing import Faults
from walkback.testing.simulator import CALLS, PROCESS

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "agents.md").read_text()
TEXT = " ".join(PAGE.split())


def section(heading: str) -> str:
    return PAGE[PAGE.index(f"## {heading}\n") :].split("\n## ", 1)[0]


def public(thing: type) -> set[str]:
    return {name for name in vars(thing) if not name.startswith("_")}


def test_everything_a_run_can_do_is_on_the_page() -> None:
    said = set(re.findall(r"`run\.(\w+)", section("The run")))
    assert said == public(wb.Run) | {"state"}


def test_everything_an_app_can_do_is_on_the_page() -> None:
    assert set(re.findall(r"`app\.(\w+)", section("The app"))) == public(wb.App)


def test_every_error_of_the_package_is_on_the_page() -> None:
    errors = [name for name in wb.__all__ if inspect.isclass(e := getattr(wb, name)) and issubclass(e, BaseException)]
    bases = {"WalkbackError", "StoreError", "DefinitionError", "ToolDefinitionError", "UnknownAgent"}
    assert [name for name in errors if name not in bases and f"wb.{name}`" not in PAGE] == []


def test_every_option_of_an_agent_is_on_the_page() -> None:
    options = inspect.signature(wb.Agent).parameters.keys() - {"function"}
    assert set(re.findall(r"^\| `(\w+)` \|", section("Agents"), re.MULTILINE)) == options


def test_every_fault_is_on_the_page() -> None:
    said = section("Testing")
    assert set(re.findall(r"^\| `(\w+)\(", said, re.MULTILINE)) == public(Faults) - {"at"}
    assert [what for what in (*PROCESS, *CALLS) if f"`{what}`" not in said] == []


def test_signatures_on_the_page_are_those_of_the_code() -> None:
    for thing, prefix in ((wb.Run, "run"), (wb.App, "app")):
        for name, given in re.findall(rf"`{prefix}\.(\w+)\(([^)]*)\)`", PAGE):
            known = inspect.signature(getattr(thing, name)).parameters
            for part in filter(None, (part.strip() for part in given.split(","))):
                argument, has_default, default = part.partition("=")
                argument = argument.lstrip("*")
                assert argument in known or argument == "input", f"{prefix}.{name}({argument})"
                if has_default and default:
                    assert known[argument].default == eval(default), f"{prefix}.{name}({part})"


def test_the_numbers_on_the_page_are_those_of_the_code() -> None:
    assert (worker.LEASE, worker.GRACE, worker.IDLE_WAIT, worker.CONCURRENCY) == (30, 30, 30, 10)
    assert execution.MAX_CRASHES == 3
    assert base.GIVE_UP_AFTER == 60
    for said in (
        "quarter of its lease (30 s)",
        "within `grace` (30 s)",
        "in a worker (10)",
        "died three times in a row",
    ):
        assert said in TEXT


def test_the_example_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "agents"}
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        exec(compile(block, "agents.md", "exec"), names)
    claim = re.search(r"trial\(\"coin\"\)\.wishes  # in the end: (\[.*\])", PAGE)
    assert claim is not None
    assert names["wishes"][-4:] == eval(claim[1])
    assert len(names["ledger"].effects) == len(names["wishes"]) + 2
