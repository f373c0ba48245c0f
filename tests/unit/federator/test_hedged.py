"""Requests that are sent again while an earlier one has no response (nova.federator.kube.client.hedged)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from nova.federator.kube.client import ApiError, hedged

PAUSE = 0.2
UNAVAILABLE, REFUSED = ApiError("etcdserver: request timed out", 500), ApiError("forbidden", 403)


class Attempts:
    """Attempts that end as ``outcomes`` describes, one (seconds, result or error) each. ``begun`` and ``ended``: the
    numbers of those that have begun, and that have ended in any way."""

    def __init__(self, *outcomes: tuple[float, Any]) -> None:
        self.outcomes, self.begun, self.ended = outcomes, 0, 0

    async def __call__(self) -> Any:
        seconds, outcome = self.outcomes[self.begun]
        self.begun += 1
        try:
            await asyncio.sleep(seconds)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome
        finally:
            self.ended += 1


def run(attempts: Callable[[], Coroutine[Any, Any, Any]], limit: float = 5.0) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(limit):
            return await hedged(attempts, PAUSE)
    return asyncio.run(limited())


@pytest.mark.parametrize(("outcomes", "begun"), [
    ([(0.0, "first")], 1), ([(60, "late"), (0.0, "first")], 2), ([(60, "late"), (60, "late"), (0.0, "first")], 3),
    ([(4 * PAUSE, "first"), (60, "late"), (60, "late")], 3)])
def test_the_first_result_counts_and_the_other_attempts_end(outcomes: list[tuple[float, Any]], begun: int) -> None:
    attempts = Attempts(*outcomes)
    assert run(attempts) == "first"
    assert attempts.begun == attempts.ended == begun


@pytest.mark.parametrize("outcomes", [
    [(2 * PAUSE, "result"), (0.0, UNAVAILABLE), (60, "late")],
    [(0.0, UNAVAILABLE), (0.0, "result")],
    [(60, "late"), (0.0, UNAVAILABLE), (0.0, "result")],
    [(0.0, UNAVAILABLE), (0.0, ApiError("broken connection")), (0.0, "result")]])
def test_a_server_that_cannot_answer_an_attempt_does_not_end_the_others(outcomes: list[tuple[float, Any]]) -> None:
    attempts = Attempts(*outcomes)
    assert run(attempts) == "result"
    assert attempts.begun == attempts.ended


def test_a_decision_of_the_server_is_raised_at_once() -> None:
    attempts = Attempts((60, "late"), (0.0, REFUSED))
    with pytest.raises(ApiError) as raised:
        run(attempts)
    assert raised.value is REFUSED
    assert attempts.begun == attempts.ended == 2


def test_three_failed_attempts_raise_the_last_error() -> None:
    attempts = Attempts((0.0, UNAVAILABLE), (0.0, UNAVAILABLE), (0.0, ApiError("the last", 503)))
    with pytest.raises(ApiError, match="the last"):
        run(attempts)
    assert attempts.begun == 3


def test_all_attempts_end_with_the_time_of_the_caller() -> None:
    attempts = Attempts((60, "late"), (60, "late"), (60, "late"))
    with pytest.raises(TimeoutError):
        run(attempts, limit=3 * PAUSE)
    assert attempts.begun == attempts.ended == 3


def test_an_error_of_an_abandoned_attempt_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    """asyncio logs errors of tasks that nobody has read."""
    async def abandoned() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(PAUSE / 2):
                await hedged(attempt, PAUSE)

    async def attempt() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise ApiError("its connection was closed")
    asyncio.run(abandoned())
    assert not caplog.records
