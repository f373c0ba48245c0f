"""Polls run at the start, when woken, and again soon after a failure."""

from __future__ import annotations

import threading

from nova import exception
from nova.network.linux import poller


def test_failed_poll_is_retried(monkeypatch):
    monkeypatch.setattr(poller, "_RETRY", 0.01)
    succeeded, polls = threading.Event(), []

    def poll():
        polls.append(1)
        if len(polls) < 3:
            raise exception.ServiceUnavailable("away")
        succeeded.set()

    thread = poller.Poller("it", poll)
    thread.start()
    assert succeeded.wait(10)
    succeeded.clear()
    thread.start()
    thread.wake()
    assert succeeded.wait(10)
    thread.stop()
    assert len(polls) == 4


def test_unexpected_error_does_not_end_the_poller(monkeypatch):
    polled = threading.Semaphore(0)

    def poll():
        polled.release()
        raise ValueError("a defect")

    thread = poller.Poller("it", poll)
    thread.start()
    assert polled.acquire(timeout=10)
    thread.wake()
    assert polled.acquire(timeout=10)
    thread.stop()
