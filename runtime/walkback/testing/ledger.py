"""The judge: what really happened in the world, kept where the runtime cannot reach it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Effect:
    """One change of the world."""

    at: int
    subject: str
    """What it is about, in the words of the business: "invoice 7", not a key."""
    key: str | None
    value: object


@dataclass(slots=True)
class Ledger:
    """Effects, in the order in which they happened."""

    effects: list[Effect] = field(default_factory=list)

    def of(self, subject: str) -> list[Effect]:
        return [effect for effect in self.effects if effect.subject == subject]


@dataclass(slots=True)
class Service:
    """Something outside that tools call. `retention` is how long it remembers a key, in microseconds; 0: it never
    looks."""

    ledger: Ledger
    now: Callable[[], int]
    retention: int = 0

    def do(self, subject: str, *, key: str | None = None, value: object = None) -> object:
        """Make it happen; or, when the key is known, say what happened then."""
        at = self.now()
        if key is not None and self.retention:
            for effect in reversed(self.ledger.effects):
                if effect.key == key and at - effect.at <= self.retention:
                    return effect.value
        self.ledger.effects.append(Effect(at, subject, key, value))
        return value

    def find(self, subject: str, *, as_of: int | None = None) -> Effect | None:
        """The newest effect about this; as it was at an earlier moment, when asked for that."""
        found = [e for e in self.ledger.of(subject) if as_of is None or e.at <= as_of]
        return found[-1] if found else None
