from __future__ import annotations

import pytest

from tests.console.terminal import Command


@pytest.fixture
def walkback(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command, at 80 columns and with no store named by the environment."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("WALKBACK_STORE", raising=False)
    return Command(capsys)
