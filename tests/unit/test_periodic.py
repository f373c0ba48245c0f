"""Threads that do something again and again."""

from __future__ import annotations

import threading

from nova.service.periodic import Periodic


def test_what_wants_to_be_called_soon_is_and_then_not_before_its_time() -> None:
    """With an interval of an hour the second call comes only since the first one asked for it, and no third does."""
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
