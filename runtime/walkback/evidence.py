"""What a verify function answers after it has read the world again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from walkback_store import words
from walkback_store.errors import ValueRefused
from walkback_store.values import plain

KINDS: Final = (
    words.Evidence.HAPPENED,
    words.Evidence.ABSENT,
    words.Evidence.CANNOT_TELL,
    words.Evidence.PARTIAL,
)
"""Whether *absent* is final depends on the time that has passed, so `absent_so_far` is not for a tool to say."""

MAX_TEXT: Final = 1_000


@dataclass(frozen=True, slots=True)
class Evidence:
    """One look at the world. Use `happened`, `absent`, `cannot_tell` or `partial` to make one.

    What was found is kept as the store gives it back: models as dicts, enums by value. Something that cannot be stored
    is kept as text, because evidence must not be lost for want of a better form.
    """

    kind: words.Evidence
    found: object = None
    detail: str = ""
    done: object = None
    missing: object = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(
                f"{self.kind!r} is not what a verify function can answer. "
                "Return happened(found), absent(), cannot_tell(why) or partial(done, missing)."
            )
        object.__setattr__(self, "kind", words.Evidence(self.kind))
        object.__setattr__(self, "found", _storable(self.found))
        object.__setattr__(self, "detail", _text(self.detail))
        object.__setattr__(self, "done", _storable(self.done))
        object.__setattr__(self, "missing", _storable(self.missing))

    def record(self) -> object:
        """What goes into the verification event beside the kind: what was found, what is missing, or why not known."""
        if self.kind is words.Evidence.PARTIAL:
            return {"done": self.done, "missing": self.missing}
        if self.kind is words.Evidence.CANNOT_TELL:
            return {"detail": self.detail}
        return self.found


def happened(found: object = None) -> Evidence:
    """The effect is there; `found` is what shows it."""
    return Evidence(words.Evidence.HAPPENED, found=found)


def absent() -> Evidence:
    """The world was read, and the effect is not there."""
    return Evidence(words.Evidence.ABSENT)


def cannot_tell(detail: object) -> Evidence:
    """The world could not be read, or does not say. `detail` is why: a text, or the exception."""
    return Evidence(words.Evidence.CANNOT_TELL, detail=_text(detail))


def partial(done: object, missing: object) -> Evidence:
    """Some of the effect is there and some is not."""
    return Evidence(words.Evidence.PARTIAL, done=done, missing=missing)


def _storable(value: object) -> object:
    if value is None:
        return None
    try:
        return plain(value)
    except ValueRefused:
        return _text(value, repr)


def _text(value: object, how: Callable[[object], str] = str) -> str:
    """Never fails: whose `str` or `repr` raises is named by its type."""
    try:
        text = f"{type(value).__name__}: {value}" if isinstance(value, BaseException) else how(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text[:MAX_TEXT].encode("utf-8", "backslashreplace").decode()[:MAX_TEXT]
