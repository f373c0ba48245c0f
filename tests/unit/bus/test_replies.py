"""Replies to callers whose queue is missing."""

import threading
import types

import oslo_messaging as messaging
import pytest

from nova import context
from nova.bus.driver import requests
from nova.bus.driver.broker import MessageRefused


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 1000.0

        def monotonic(self):
            return self.now

    made = Clock()
    monkeypatch.setattr(requests, "time", made)
    return made


def test_queue_is_missing_since_the_first_failed_reply(clock):
    missing = requests.MissingQueues()
    assert missing.seconds("q") == 0
    clock.now += 7
    assert missing.seconds("other") == 0
    assert missing.seconds("q") == 7


def test_recreated_queue_is_not_missing(clock):
    missing = requests.MissingQueues()
    missing.seconds("q")
    clock.now += 7
    missing.exists("q")
    missing.exists("q")
    assert missing.seconds("q") == 0


def test_missing_queue_entry_expires(clock):
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


class Refusing:
    """A broker that never accepts a reply."""

    prefetch = 1

    def __init__(self):
        self.messages = []

    def publish(self, message):
        self.messages.append(message)
        raise MessageRefused("The message is too large.")


@pytest.mark.parametrize(("queue", "attempts"), [("reply_1", 1), (None, 0), (5, 0), (["reply_1"], 0)])
def test_reply_that_the_broker_never_accepts_is_sent_once_at_most(queue, attempts):
    broker = Refusing()
    requests.Request(requests.Listener(broker, [], 6, 10), {}, {"_msg_id": "1", "_reply_q": queue}).reply({})
    assert len(broker.messages) == attempts


@pytest.mark.parametrize(("host", "wire", "waiting"), [("h1", {}, 4), ("", {"seal": "forged"}, 4), ("", {}, 6)],
                         ids=["a host", "an unverified sender", "the control plane"])
def test_replies_to_nonexistent_queues_of_a_host_block_few_threads(monkeypatch, host, wire, waiting):
    """Otherwise a few requests of a host would block all threads of a conductor."""
    paused, over = threading.Semaphore(0), threading.Event()

    def pause(_seconds):
        paused.release()
        over.wait(30)

    monkeypatch.setattr(requests, "time", types.SimpleNamespace(
        sleep=pause, monotonic=lambda: 1000.0 if not over.is_set() else 1020.0))

    listener = requests.Listener(NoQueues(), [], 6, missing_queue_seconds=10)

    def answer(number):
        received = context.RequestContext(overwrite=True)
        received.calling_host, received.wire = host, wire
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
