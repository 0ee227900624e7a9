"""What importing a package loads, looked at from a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOADED_LATE = ("textual", "rich", "deepdiff", "typer", "alembic", "psycopg")


@pytest.mark.parametrize("package", ["walkback_store", "walkback"])
def test_importing_loads_nothing_that_is_not_needed_at_once(package: str) -> None:
    program = f"import sys, {package}; print(*(name for name in {LOADED_LATE!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
