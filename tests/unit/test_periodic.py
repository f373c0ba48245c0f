"""Periodic calls of a function."""

from __future__ import annotations

import threading

from nova.service.periodic import Periodic


def test_periodic_function_that_returns_a_pause_is_called_early_once() -> None:
    """Request a second call from the first; no third call follows within the interval of an hour."""
    calls, second = [], threading.Event()

    def function() -> float | None:
        calls.append(1)
        if len(calls) == 1:
            return 0.01
        second.set()
        return None

    thread = Periodic("test", 3600, function)
    thread.start()
    assert second.wait(30)
    thread.stop()
    assert len(calls) == 2


def test_failed_call_is_retried_before_the_next_interval() -> None:
    """Fail twice, also by a defect; wake the thread after the call that succeeds."""
    errors, calls = [OSError("away"), ValueError("a defect")], threading.Semaphore(0)

    def function() -> None:
        if errors:
            raise errors.pop()
        calls.release()

    thread = Periodic("test", 3600, function, retry=0.01)
    thread.start()
    assert calls.acquire(timeout=30)
    thread.wake()
    assert calls.acquire(timeout=30)
    thread.stop()
