"""Polling of a condition, for tests of all kinds."""

import time
from collections.abc import Callable
from typing import Any


def poll(condition: Callable[[], Any], seconds: float, pause: float = 0.1) -> Any:
    """Return the first true value of the condition, or its last value after ``seconds``, at least 30.

    A busy machine delays everything, so a shorter limit proves nothing; a test of a duration reads a clock.
    Pauses shorter than 0.1 s grow to that, and each pause is at least as long as the condition took, up to 1 s: polling
    takes CPU time from what the test waits for.
    """
    began = time.monotonic()
    end, longest = began + max(seconds, 30.0), max(pause, 0.1)
    while not (value := condition()) and (now := time.monotonic()) < end:
        time.sleep(max(pause, min(now - began, 1.0)))
        began, pause = time.monotonic(), min(1.3 * pause, longest)
    return value
