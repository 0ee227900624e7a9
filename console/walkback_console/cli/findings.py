"""What a check of `walkback doctor` found."""

from __future__ import annotations

from dataclasses import dataclass

OK, LOOK, BAD = "ok", "look", "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    verdict: str
    """`ok`; `look`, which works but should be looked at; `bad`."""
    found: str
    do: str = ""
