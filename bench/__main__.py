"""Runs the benchmarks named on the command line, or all of them: `python -m bench [names...]`."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sqlite3
import sys
from pathlib import Path

from bench.report import Report, merge_into, table

HERE = Path(__file__).parent
PREFIX = "bench_"


def available() -> list[str]:
    return sorted(path.stem.removeprefix(PREFIX) for path in HERE.glob(f"{PREFIX}*.py"))


def environment() -> str:
    """One line about this machine. It goes on the screen and not into the results, which are compared across machines.

    The SQLite version is the one the store would use, where the store can be asked.
    """
    try:
        from walkback_store.sqlite_library import describe
    except ImportError:
        sqlite = f"{sqlite3.sqlite_version} (sqlite3)"
    else:
        used = describe()
        sqlite = f"{used['version']} ({used['module']})"
    return f"Python {platform.python_version()}, SQLite {sqlite}, {os.cpu_count()} cores"


def main() -> int:
    names = available()
    parser = argparse.ArgumentParser(prog="python -m bench", description="Run the benchmarks.")
    parser.add_argument("names", nargs="*", help=f"which ones (default: all of {', '.join(names) or 'none yet'})")
    wanted = [name.removeprefix(PREFIX) for name in parser.parse_args().names] or names
    unknown = sorted(set(wanted) - set(names))
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are: {', '.join(names) or 'none yet'}")

    print(environment(), flush=True)
    report = Report()
    for name in wanted:
        print(f"running {name} ...", file=sys.stderr, flush=True)
        importlib.import_module(f"bench.{PREFIX}{name}").run(report)
    if not report.entries:
        print("nothing was measured")
        return 0
    print(table(report.entries))
    merge_into(HERE / "results.json", report.entries)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
