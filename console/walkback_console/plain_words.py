"""Times, durations and sizes as people say them. Times are microseconds since 1970; all of them are shown in UTC."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

MILLISECOND = 1_000
SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FOREVER = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
"""Times from here on, the end of the year 9999, mean: never."""
_UNITS = {"s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY, "w": 7 * DAY}
_DURATION = re.compile(r"(\d{1,9})\s*([smhdw])", re.ASCII)


def moment(at: int) -> datetime:
    return _EPOCH + timedelta(microseconds=min(at, FOREVER))


def utc(at: int) -> str:
    return f"{moment(at):%Y-%m-%d %H:%M:%S} UTC"


def clock(at: int) -> str:
    """The time of day, for lists in which the day is said elsewhere."""
    return f"{moment(at):%H:%M:%S}.{at // MILLISECOND % 1000:03d}"


def iso(at: int | None) -> str | None:
    """For scripts: always six digits and a Z."""
    return None if at is None else f"{moment(at):%Y-%m-%dT%H:%M:%S.%f}Z"


def duration(length: int) -> str:
    """Two figures at most: nobody reads "3 h 12 min 9 s" for its seconds."""
    if length < MILLISECOND:
        return "0 ms" if length <= 0 else "<1 ms"
    if length < SECOND:
        return f"{length // MILLISECOND} ms"
    if length < 10 * SECOND:
        return f"{length // (SECOND // 10) / 10:.1f} s"  # rounded down: 9.96 s is not yet 10
    if length < MINUTE:
        return f"{length // SECOND} s"
    if length < HOUR:
        return f"{length // MINUTE} min"
    if length < DAY:
        hours, minutes = divmod(length // MINUTE, 60)
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days = length // DAY
    return "1 day" if days == 1 else f"{days:,} days"


def ago(at: int, now: int) -> str:
    if now - at < SECOND:
        # A clock that is behind by a moment is no reason to speak of the future.
        return "just now" if now - at > -5 * SECOND else f"in {duration(at - now)}"
    return f"{_whole(now - at)} ago"


def age(at: int, now: int) -> str:
    return _whole(max(0, now - at))


def left(until: int, now: int) -> str:
    return f"{_whole(until - now)} left" if until > now else f"{_whole(now - until)} late"


def _whole(length: int) -> str:
    return f"{length // SECOND} s" if length < MINUTE else duration(length)


def size(count: int) -> str:
    if count < 1000:
        return f"{count} bytes"
    amount = float(count)
    for unit in ("KB", "MB", "GB", "TB"):
        amount /= 1000
        if amount < 999.5 or unit == "TB":
            break
    return f"{amount:.1f} {unit}" if amount < 9.95 else f"{amount:,.0f} {unit}"


def many(count: int, one: str, more: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def parse_duration(text: str) -> int:
    """Microseconds in "30d", "12h", "90m", "45s" or "2w"; ValueError for anything else."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a duration: give a number and one of s, m, h, d or w, such as 30d or 12h")
    return int(found[1]) * _UNITS[found[2]]


def is_silent(worker: Mapping[str, Any], now: int) -> bool:
    """Nobody declares the last worker lost, for that is what workers do; so whoever looks says what they see."""
    heard = max(worker["beat_at"] or 0, worker["started_at"])
    return bool(worker["status"] == "alive" and now - heard > worker["lease"] + 2 * SECOND)
