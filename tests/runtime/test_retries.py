"""A retry policy waits no longer than it says, stops where it says, and is refused when it could never work."""

from __future__ import annotations

import dataclasses
import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walkback.retries import NO_RETRY, READS, WRITES, Retry, none

spans = st.timedeltas(timedelta(0), timedelta(days=365))
jitters = st.floats(0, 1, exclude_max=True)


@given(spans, spans, st.integers(1, 10_000), jitters)
def test_no_wait_is_negative_or_longer_than_the_cap(one: timedelta, other: timedelta, attempt: int, j: float) -> None:
    retry = Retry(base=min(one, other), cap=max(one, other))
    assert timedelta(0) <= retry.delay(attempt, j) <= retry.cap


@given(jitters, jitters, st.integers(1, 40))
def test_more_jitter_never_means_a_shorter_wait(one: float, other: float, attempt: int) -> None:
    assert WRITES.delay(attempt, min(one, other)) <= WRITES.delay(attempt, max(one, other))


def test_the_longest_wait_doubles_until_the_cap() -> None:
    retry = Retry(base=timedelta(seconds=1), cap=timedelta(seconds=30))
    assert [retry.delay(n, 0.5).total_seconds() for n in range(1, 8)] == [0.5, 1, 2, 4, 8, 15, 15]


def test_without_jitter_there_is_no_wait() -> None:
    assert READS.delay(3, 0) == timedelta(0)


def test_the_millionth_attempt_waits_no_longer_than_the_longest_span_there_is() -> None:
    retry = Retry(base=timedelta(microseconds=1), cap=timedelta.max)
    assert retry.delay(10**6, 0.999999) <= timedelta.max


def test_reads_and_writes_have_policies_of_their_own() -> None:
    assert (READS.attempts, READS.elapsed) == (4, timedelta(minutes=1))
    assert (READS.base, READS.cap) == (timedelta(milliseconds=200), timedelta(seconds=5))
    assert (WRITES.attempts, WRITES.elapsed) == (3, timedelta(minutes=5))
    assert (WRITES.base, WRITES.cap) == (timedelta(seconds=1), timedelta(seconds=30))
    assert {READS.tokens, WRITES.tokens} == {20}
    assert {READS.tokens_per_second, WRITES.tokens_per_second} == {1.0}


def test_no_retry_is_one_attempt() -> None:
    assert NO_RETRY.attempts == 1
    assert none() is NO_RETRY


def test_some_errors_end_the_retries() -> None:
    retry = Retry(stop=(PermissionError, ValueError))
    assert retry.stops(UnicodeError())
    assert not retry.stops(OSError())
    assert not READS.stops(ValueError())


def test_one_class_is_as_good_as_a_tuple_of_one() -> None:
    given: Any = ValueError
    assert Retry(stop=given).stop == (ValueError,)
    assert Retry(stop=given).stops(ValueError())


def test_a_policy_cannot_be_changed_but_copied() -> None:
    policy: Any = READS
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.attempts = 9
    assert dataclasses.replace(READS, attempts=9).cap == READS.cap
    assert hash(READS) != hash(WRITES)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"attempts": 0}, "write 1 for no retries"),
        ({"attempts": True}, "attempts is True"),
        ({"attempts": 2.5}, "attempts is 2.5"),
        ({"elapsed": timedelta(0)}, "more than nothing"),
        ({"elapsed": 60}, "write a timedelta"),
        ({"base": timedelta(seconds=-1)}, "cannot be negative"),
        ({"cap": 5}, "cap is 5; write a timedelta"),
        ({"base": timedelta(seconds=9), "cap": timedelta(seconds=2)}, "shorter than base"),
        ({"stop": (ValueError, "oops")}, "stop has 'oops'; write exception classes"),
        ({"stop": int}, "write exception classes"),
        ({"tokens": 0}, "tokens is 0; it must be at least 1"),
        ({"tokens": math.nan}, "tokens is nan"),
        ({"tokens": True}, "tokens is True"),
        ({"tokens_per_second": -1}, "tokens_per_second is -1"),
        ({"tokens_per_second": math.inf}, "tokens_per_second is inf"),
    ],
)
def test_a_policy_that_could_never_work_is_refused_with_what_to_write(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Retry(**wrong)


@pytest.mark.parametrize(("attempt", "jitter"), [(0, 0.5), (1, 1.0), (1, -0.1), (1, math.nan)])
def test_a_wait_that_makes_no_sense_is_not_computed(attempt: int, jitter: float) -> None:
    with pytest.raises(ValueError, match=r"attempt is|jitter is"):
        READS.delay(attempt, jitter)
