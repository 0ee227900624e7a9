"""The documentation says what is true: paths, links, commands, options, JSON keys and numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from walkback_console import cli
from walkback_console.cli.commands import app
from walkback_store import paging, snapshots, values
from walkback_store.machine.base import MAX_NAME

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
CLI = (ROOT / "docs" / "cli.md").read_text()
STORE = (ROOT / "docs" / "store.md").read_text()
LINK = re.compile(r"\]\(([^)\s]+)\)")


# --- paths and links ---------------------------------------------------------------------------------------------


def readme_map() -> dict[str, str]:
    after = (ROOT / "README.md").read_text().split("## Where things live", 1)[1]
    lines = after.split("```", 2)[1].strip().splitlines()
    return dict(re.split(r"\s{2,}", line, maxsplit=1) for line in lines)


def test_every_place_in_the_readmes_map_exists() -> None:
    places = readme_map()
    assert len(places) >= 7
    assert [place for place in places if not (ROOT / place).is_dir()] == []


def test_every_folder_of_ours_is_in_the_readmes_map() -> None:
    tops = {Path(place).parts[0] for place in readme_map()}
    made = {"demo", "build", "dist"}
    found = {p.name for p in ROOT.iterdir() if p.is_dir() and not p.name.startswith((".", "__"))}
    assert found - made == tops


def anchors(page: Path) -> set[str]:
    text = page.read_text()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)"', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_inside_the_documentation_lead_somewhere(page: Path) -> None:
    broken = []
    for link in LINK.findall(page.read_text()):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_decision_has_a_number_of_its_own_and_no_number_is_missing() -> None:
    numbers = [int(page.name[:4]) for page in sorted((ROOT / "docs" / "decisions").glob("*.md"))]
    assert numbers == list(range(1, len(numbers) + 1))


# --- the command -------------------------------------------------------------------------------------------------


def section(command: str) -> str:
    found = re.search(rf"^### `walkback {command}\b.*?(?=^##)", CLI + "\n## end", re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/cli.md has no section about walkback {command}"
    return found[0]


def known_commands() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


def test_every_command_has_a_section_and_every_section_a_command() -> None:
    assert set(re.findall(r"^### `walkback (\w+)", CLI, re.MULTILINE)) == known_commands().keys()


def test_every_option_is_documented_with_its_command() -> None:
    everywhere = {"--store", "--json", "--help", "-h"}
    missing = []
    for name, command in known_commands().items():
        said = section(name)
        for parameter in command.params:
            longest = max(parameter.opts, key=len) if parameter.param_type_name == "option" else None
            if longest is not None and longest not in everywhere and f"{longest}" not in said:
                missing.append(f"{name} {longest}")
    assert missing == []


def test_every_command_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [name for name in known_commands() if f"`{name}`" not in readme] == []


def test_every_exit_code_is_in_the_table() -> None:
    table = {int(code) for code in re.findall(r"^\| (\d+) \|", CLI, re.MULTILINE)}
    assert table == {cli.FINE, cli.REFUSED, cli.USAGE, cli.UNREACHABLE, cli.NOT_WRITTEN, cli.INTERRUPTED}


# --- numbers -----------------------------------------------------------------------------------------------------


def test_the_numbers_in_the_page_about_the_store_are_those_of_the_code() -> None:
    spans = [snapshots.RADIX**level for level in range(1, snapshots.LEVELS + 1)]
    # Every level has its longest chain at the end of its span, and the last one starts from a keyframe.
    hops = max(len(snapshots.chain_of(n)) for n in range(spans[-1] - snapshots.RADIX, spans[-1]))
    text = " ".join(STORE.split())
    for said in (
        *(f"every {span}" for span in spans[:-1]),
        f"every {spans[-1]}",
        f"at most {hops} hops",
        f"up to {snapshots.MAX_DEPTH} in all",
        f"{values.MAX_BYTES // 2**20} MiB",
        f"{values.MAX_DEPTH} levels",
        f"{MAX_NAME} printable characters",
        f"{paging.MAX_PAGE:,} rows",
        f"exact up to {paging.COUNT_LIMIT:,}",
    ):
        assert said in text, f"docs/store.md does not say {said!r}"
    decision = " ".join((ROOT / "docs" / "decisions" / "0003-snapshots-in-levels.md").read_text().split())
    for said in (*(f"every {span}" for span in spans), f"at most {hops} hops", f"bounded at {snapshots.MAX_DEPTH}"):
        assert said in decision, f"decision 3 does not say {said!r}"


def test_the_tags_in_the_page_about_the_store_are_those_of_the_code() -> None:
    paragraph = STORE[STORE.index("What JSON lacks is tagged") :].split("\n\n", 1)[0]
    tags = set(values._READERS) | {"tuple", "set", "dict"}
    assert [tag for tag in sorted(tags) if f"`{tag}`" not in paragraph] == []


def test_every_table_is_in_the_page_about_the_store() -> None:
    from walkback_store.schema import metadata

    listed = STORE[STORE.index("## What is stored") :].split("\n\n", 2)[1]
    assert {name for name in re.findall(r"`(\w+)`", listed)} == set(metadata.tables)
