"""What is typed after `/`: plain words, and `name:value` pairs that narrow a list down. The same in every list."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from walkback_console.plain_words import parse_duration

if TYPE_CHECKING:
    from walkback_store.queries import RunFilter

NAMES = ("status", "agent", "tag", "since", "owner", "tool")


class BadFilter(ValueError):
    """A pair that means nothing, with what would."""


@dataclass(frozen=True, slots=True)
class Filter:
    words: tuple[str, ...] = ()
    status: tuple[str, ...] = ()
    agent: str | None = None
    tag: str | None = None
    since: int | None = None
    owner: str | None = None
    tool: str | None = None
    fingerprint: str | None = None
    typed: str = field(default="", compare=False)

    def matches(self, row: Mapping[str, Any], now: int) -> bool:
        """For lists that are all there; texts are compared as people type them, without regard to case."""
        if self.status and not {row.get("kind"), row.get("status"), row.get("why")} & set(self.status):
            return False
        for name, wanted in (("agent", self.agent), ("owner", self.owner), ("tool", self.tool)):
            if wanted is not None and not str(row.get(name) or "").lower().startswith(wanted.lower()):
                return False
        if self.tag is not None and self.tag not in json.loads(row.get("tags") or "[]"):
            return False
        if self.since is not None and (row.get("since") or row.get("created_at") or 0) < now - self.since:
            return False
        names = ("kind", "why", "tool", "description", "run_id", "agent", "owner", "error_class", "detail", "stake")
        text = " ".join(str(row.get(name) or "") for name in names).lower()
        return all(word.lower() in text for word in self.words)

    def of_runs(self, now: int) -> RunFilter:
        """The same for the store, which finds runs by the beginning of their id."""
        from walkback_store.queries import RunFilter

        return RunFilter(
            status=_statuses(self.status),
            agent_prefix=self.agent,
            tag=self.tag,
            since=None if self.since is None else now - self.since,
            prefix=self.words[0] if self.words else None,
            fingerprint=self.fingerprint,
        )


def _statuses(typed: tuple[str, ...]) -> list[str]:
    """What is typed of a status finds all that begin so; what begins none stays, and finds nothing."""
    from walkback_store.words import RunStatus

    known = [status.value for status in RunStatus]
    found: list[str] = []
    for word in typed:
        found += [word] if word in known else [name for name in known if name.startswith(word)] or [word]
    return found


def parse(typed: str) -> Filter:
    found: dict[str, Any] = {}
    words: list[str] = []
    status: list[str] = []
    for part in typed.split():
        name, colon, value = part.partition(":")
        if not colon:
            words.append(part)
        elif name not in NAMES:
            raise BadFilter(f"{name!r} is nothing to filter by; there are {', '.join(NAMES)}, and plain words")
        elif not value:
            continue  # not typed to its end yet
        elif name == "status":
            status += value.split(",")
        elif name == "since":
            try:
                found[name] = parse_duration(value)
            except ValueError as error:
                raise BadFilter(str(error)) from error
        else:
            found[name] = value
    return Filter(words=tuple(words), status=tuple(status), typed=typed, **found)
