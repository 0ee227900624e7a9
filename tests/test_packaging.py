"""What an installation gives: one command, and the packages it needs to know which version it is."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import distribution, entry_points
from pathlib import Path

import walkback_console.cli

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_distribution_has_one_command_and_it_is_walkback() -> None:
    scripts = [e for e in distribution("walkback").entry_points if e.group == "console_scripts"]
    assert [(e.name, e.value) for e in scripts] == [("walkback", "walkback_console.cli:main")]
    (found,) = entry_points(group="console_scripts", name="walkback")
    assert found.load() is walkback_console.cli.main


def test_the_installed_command_says_the_version_of_the_project() -> None:
    command = Path(sys.executable).with_name("walkback")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"walkback {PROJECT['project']['version']}\n"


def test_the_wheel_has_every_package_and_every_package_its_types() -> None:
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    holders = PROJECT["tool"]["hatch"]["build"]["dev-mode-dirs"]
    found = sorted(
        str(file.parent.relative_to(ROOT)) for holder in holders for file in (ROOT / holder).glob("*/__init__.py")
    )
    assert sorted(packages) == found
    assert [package for package in packages if not (ROOT / package / "py.typed").exists()] == []


def test_every_import_that_is_not_ours_is_a_dependency() -> None:
    """Looked at from the outside: every third-party package that the three parts name is asked for."""
    import ast
    import re

    def wanted(requirements: list[str]) -> set[str]:
        return {re.split(r"[^\w.-]", requirement)[0].lower().replace("-", "_") for requirement in requirements}

    asked = wanted(PROJECT["project"]["dependencies"]) | wanted(
        PROJECT["project"]["optional-dependencies"]["postgresql"]
    )
    ours = {"walkback", "walkback_store", "walkback_console"}
    comes_with = {"pydantic_core"}  # pydantic asks for exactly the one it was built with
    later = {"annotationlib"}  # of the standard library, from Python 3.14 on, and imported only there
    missing = set()
    for holder in PROJECT["tool"]["hatch"]["build"]["dev-mode-dirs"]:
        for file in (ROOT / holder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    names = [node.module]
                tops = {name.split(".")[0] for name in names} - ours - comes_with - later - sys.stdlib_module_names
                missing |= {f"{file.relative_to(ROOT)}: {top}" for top in tops if top not in asked}
    assert missing == set()
