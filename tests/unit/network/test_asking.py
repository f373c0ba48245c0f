"""Questions are asked at the start, when woken, and again soon after one that was not answered."""

from __future__ import annotations

import threading

from nova import exception
from nova.network import asking


def test_a_question_is_asked_until_it_is_answered(monkeypatch):
    monkeypatch.setattr(asking, "_AGAIN", 0.01)
    answered, asked = threading.Event(), []

    def question():
        asked.append(1)
        if len(asked) < 3:
            raise exception.ServiceUnavailable("away")
        answered.set()

    asker = asking.Asker("it", question)
    asker.start()
    assert answered.wait(10)
    answered.clear()
    asker.start()
    asker.wake()
    assert answered.wait(10)
    asker.stop()
    assert len(asked) == 4


def test_a_defect_ends_nothing(monkeypatch):
    asked = threading.Semaphore(0)

    def question():
        asked.release()
        raise ValueError("a defect")

    asker = asking.Asker("it", question)
    asker.start()
    assert asked.acquire(timeout=10)
    asker.wake()
    assert asked.acquire(timeout=10)
    asker.stop()
