"""To be written."""

from __future__ import annotations

from typing import Any

from walkback_console.screens.help import HelpScreen


class RunScreen(HelpScreen):
    def __init__(self, *_: Any) -> None:
        super().__init__("run")
