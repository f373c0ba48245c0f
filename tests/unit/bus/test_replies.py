"""Replies to callers whose queue is missing."""

import threading
import types

import oslo_messaging as messaging
import pytest

from nova import context
from nova.bus.driver import requests


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 1000.0

        def monotonic(self):
            return self.now

    made = Clock()
    monkeypatch.setattr(requests, "time", made)
    return made


def test_a_queue_is_missing_since_it_was_missed_first(clock):
    missing = requests.MissingQueues()
    assert missing.seconds("q") == 0
    clock.now += 7
    assert missing.seconds("other") == 0
    assert missing.seconds("q") == 7


def test_a_queue_that_was_found_is_missing_no_more(clock):
    missing = requests.MissingQueues()
    missing.seconds("q")
    clock.now += 7
    missing.exists("q")
    missing.exists("q")
    assert missing.seconds("q") == 0


def test_what_was_missing_long_ago_is_forgotten(clock):
    missing = requests.MissingQueues()
    missing.seconds("q")
    clock.now += 30
    missing.seconds("later")
    clock.now += 31
    assert missing.seconds("q") == 0
    assert missing.seconds("later") == 31


class NoQueues:
    """A broker that has no reply queue."""

    prefetch = 1

    def publish(self, message):
        raise messaging.MessageUndeliverable(None, "", message.routing_key, None)


@pytest.mark.parametrize(("host", "wire", "waiting"), [("h1", {}, 4), ("", {"seal": "forged"}, 4), ("", {}, 6)],
                         ids=["a host", "a stranger", "the control plane"])
def test_a_host_that_names_queues_that_never_were_holds_few_threads(monkeypatch, host, wire, waiting):
    """A handful of questions would keep all threads of a conductor from everybody for as long as it likes."""
    paused, over = threading.Semaphore(0), threading.Event()

    def pause(_seconds):
        paused.release()
        over.wait(30)

    monkeypatch.setattr(requests, "time", types.SimpleNamespace(
        sleep=pause, monotonic=lambda: 1000.0 if not over.is_set() else 1020.0))

    listener = requests.Listener(NoQueues(), [], 6, missing_queue_seconds=10)

    def answer(number):
        asked = context.RequestContext(overwrite=True)
        asked.asking_host, asked.wire = host, wire
        requests.Request(listener, {}, {"_msg_id": str(number), "_reply_q": f"reply_{number}"}).reply({})

    threads = [threading.Thread(target=answer, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    try:
        for _waiter in range(waiting):
            assert paused.acquire(timeout=30)
        for thread in threads:
            thread.join(0.2 if waiting == 6 else 5 / len(threads))
        assert sum(thread.is_alive() for thread in threads) == waiting
    finally:
        over.set()
        for thread in threads:
            thread.join(30)
