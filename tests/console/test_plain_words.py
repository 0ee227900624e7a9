"""Times, durations and sizes as people say them."""

from __future__ import annotations

import pytest

from walkback_console import plain_words as say

AT = 1_700_000_000_123_456


@pytest.mark.parametrize(
    ("length", "said"),
    [
        (-5, "0 ms"),
        (0, "0 ms"),
        (999, "<1 ms"),
        (340_000, "340 ms"),
        (9_999_999, "9.9 s"),
        (45 * say.SECOND, "45 s"),
        (5 * say.MINUTE + 59 * say.SECOND, "5 min"),
        (3 * say.HOUR, "3 h"),
        (3 * say.HOUR + 20 * say.MINUTE, "3 h 20 min"),
        (say.DAY, "1 day"),
        (1234 * say.DAY, "1,234 days"),
    ],
)
def test_durations_have_two_figures_at_most(length: int, said: str) -> None:
    assert say.duration(length) == said


def test_times_are_utc_whatever_the_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert say.utc(AT) == "2023-11-14 22:13:20 UTC"
    assert say.clock(AT) == "22:13:20.123"
    assert say.iso(AT) == "2023-11-14T22:13:20.123456Z"
    assert say.iso(None) is None


def test_ages_and_deadlines_read_in_both_directions() -> None:
    assert say.ago(AT, AT + 3 * say.MINUTE) == "3 min ago"
    assert say.ago(AT, AT) == "just now"
    assert say.ago(AT, AT - say.HOUR) == "in 1 h"
    assert say.left(AT, AT - 90 * say.SECOND) == "1 min left"
    assert say.left(AT, AT + 90 * say.SECOND) == "1 min late"


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 bytes"), (999, "999 bytes"), (1200, "1.2 KB"), (999_900, "1.0 MB"), (12_345_678, "12 MB")],
)
def test_sizes_have_two_or_three_figures(count: int, said: str) -> None:
    assert say.size(count) == said


@pytest.mark.parametrize(
    ("text", "length"), [("30d", 30 * say.DAY), ("12h", 12 * say.HOUR), ("2w", 14 * say.DAY), ("0s", 0)]
)
def test_a_duration_is_a_number_and_a_unit(text: str, length: int) -> None:
    assert say.parse_duration(text) == length


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1.5h", "30 fortnights", "30D", "٣d"])
def test_other_durations_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="such as 30d or 12h"):
        say.parse_duration(text)
