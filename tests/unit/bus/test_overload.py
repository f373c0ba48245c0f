"""Servers that have too much to do, and callers whom nobody answers."""

import concurrent.futures
import threading
import time

import pytest
from oslo_config import cfg

from nova import bus, context, exception
from nova.bus import circuit
from nova.bus.driver import requests
from nova.telemetry import metrics

CTX = context.RequestContext(user_id="u", project_id="p", roles=["member"], overwrite=False)
SECONDS = 20


class Desk(bus.Interface):
    topic = "desk"
    namespace = "desk"

    @bus.call
    def ask(self, ctx: context.RequestContext, name: str) -> bool: ...

    @bus.cast
    def note(self, ctx: context.RequestContext, name: str) -> None: ...

    @bus.brief_cast(0.3)
    def whisper(self, ctx: context.RequestContext, name: str) -> None: ...


class Clerk:
    """Answers while ``open`` is set; ``seen`` is what was begun."""

    def __init__(self):
        self.open = threading.Event()
        self.open.set()
        self.seen = []

    def ask(self, ctx, name):
        self.seen.append(name)
        self.open.wait(SECONDS)
        return context.too_late()

    note = whisper = ask


@pytest.fixture
def transport(request):
    made = bus.connect(cfg.CONF, url=f"kombu+memory://overload-{request.node.name}")
    yield made
    made.cleanup()


@pytest.fixture
def clerk(transport):
    made = Clerk()
    server = bus.serve(transport, "desk", "h1", [(Desk, made)], threads=2)
    yield made
    made.open.set()
    bus.stop_taking(server)
    server.wait()


def eventually(condition):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def fill(clerk, desk):
    """Both threads are at work until the clerk opens."""
    clerk.open.clear()
    for name in ("first", "second"):
        desk.note(CTX, name)
    eventually(lambda: len(clerk.seen) == 2)


def test_a_call_whose_caller_has_given_up_is_not_run(transport, clerk):
    desk = bus.client(transport, Desk)
    fill(clerk, desk)
    with pytest.raises(exception.ServiceUnavailable):
        bus.within(desk, 0.2).ask(CTX, "late")
    clerk.open.set()
    assert desk.ask(CTX, "in time") is False
    assert clerk.seen == ["first", "second", "in time"]


def test_a_cast_that_is_of_no_use_any_more_is_not_run(transport, clerk):
    desk = bus.client(transport, Desk)
    fill(clerk, desk)
    desk.whisper(CTX, "brief")
    desk.note(CTX, "long")
    time.sleep(0.4)
    clerk.open.set()
    eventually(lambda: "long" in clerk.seen)
    assert "brief" not in clerk.seen


def test_a_request_that_waited_too_long_for_its_thread_is_dropped_and_counted(transport, clerk, monkeypatch):
    dropped, thread = [], requests.Request.acknowledge
    monkeypatch.setattr(metrics.BUS_DROPPED, "inc", dropped.append)
    desk = bus.client(transport, Desk)

    def late(request):
        if request.message["method"] == "whisper":
            time.sleep(0.4)
        thread(request)

    monkeypatch.setattr(requests.Request, "acknowledge", late)
    desk.whisper(CTX, "brief")
    eventually(lambda: dropped == ["desk.whisper"])
    assert clerk.seen == []


def test_whoever_is_asked_can_tell_when_the_caller_gives_up(transport, clerk):
    desk, found = bus.client(transport, Desk), []
    assert desk.ask(CTX, "in time") is False
    clerk.open.wait = lambda _seconds: (time.sleep(0.3), found.append(context.too_late()))
    with pytest.raises(exception.ServiceUnavailable):
        bus.within(desk, 0.1).ask(CTX, "late")
    eventually(lambda: found == [True])


def test_a_server_takes_no_more_than_it_has_threads_for(transport, clerk):
    """What it has not taken is there for another server."""
    desk = bus.client(transport, Desk)
    fill(clerk, desk)
    for number in range(20):
        desk.note(CTX, f"note {number}")
    other = Clerk()
    server = bus.serve(transport, "desk", "h2", [(Desk, other)], threads=2)
    eventually(lambda: len(other.seen) >= 15)
    clerk.open.set()
    eventually(lambda: len(other.seen) + len(clerk.seen) == 22)
    bus.stop_taking(server)
    server.wait()


def test_a_server_that_is_full_can_be_stopped_and_leaves_the_rest_to_another(transport):
    clerk, desk = Clerk(), bus.client(transport, Desk)
    server = bus.serve(transport, "desk", "h1", [(Desk, clerk)], threads=2)
    fill(clerk, desk)
    desk.note(CTX, "third")
    stopping = threading.Thread(target=bus.stop_taking, args=(server,))
    stopping.start()
    stopping.join(SECONDS)
    assert not stopping.is_alive()
    clerk.open.set()
    server.wait()
    other = Clerk()
    successor = bus.serve(transport, "desk", "h2", [(Desk, other)], threads=2)
    eventually(lambda: sorted(clerk.seen + other.seen) == ["first", "second", "third"])
    bus.stop_taking(successor)
    successor.wait()


# --- nobody answers ----------------------------------------------------------------------------------------
@pytest.fixture
def hasty(monkeypatch):
    """Silence is noticed sooner than in a data centre."""
    for name, value in {"_SUSPECT": 0.2, "_PAUSE": 0.05, "_PING": 0.2}.items():
        monkeypatch.setattr(circuit, name, value)


def silence(desk):
    """Calls go unanswered until they fail at once."""
    def at_once():
        started = time.monotonic()
        with pytest.raises(exception.ServiceUnavailable):
            bus.within(desk, 0.5).ask(CTX, "anybody?")
        return time.monotonic() - started < 0.3

    eventually(at_once)


@pytest.mark.usefixtures("hasty")
def test_when_nobody_answers_calls_fail_at_once_until_somebody_does(transport, clerk):
    desk = bus.client(transport, Desk)
    fill(clerk, desk)
    silence(desk)
    clerk.open.set()

    def answered():
        try:
            return desk.ask(CTX, "hello") is False
        except exception.ServiceUnavailable:
            return False

    eventually(answered)
    assert not [name for name in clerk.seen if name == "anybody?"]


@pytest.mark.usefixtures("hasty")
def test_one_call_that_takes_long_says_nothing_of_the_others(transport, clerk):
    desk = bus.client(transport, Desk)
    clerk.open.clear()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        slow = pool.submit(desk.ask, CTX, "slow")
        eventually(lambda: clerk.seen)
        time.sleep(1)
        quick = pool.submit(desk.ask, CTX, "quick")
        eventually(lambda: len(clerk.seen) == 2)
        clerk.open.set()
        assert (slow.result(SECONDS), quick.result(SECONDS)) == (False, False)


def test_whoever_asks_twice_gets_the_answer_of_the_second():
    answers = [exception.ServiceUnavailable("frozen"), "alive"]

    def ask():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert bus.ask_again(ask) == "alive"
    answers[:] = [exception.ServiceUnavailable("frozen"), exception.ServiceUnavailable("frozen, too")]
    with pytest.raises(exception.ServiceUnavailable, match="too"):
        bus.ask_again(ask)


def test_no_call_runs_after_its_deadline(transport, clerk, monkeypatch):
    """Also when it was in time at first: its thread had to wait, or its arguments took long to decode."""
    admit = bus.server.Gate.admit

    def slow(self, ctx, payload):
        args = admit(self, ctx, payload)
        while args.name.startswith("late") and not context.too_late():
            time.sleep(0.01)
        return args

    monkeypatch.setattr(bus.server.Gate, "admit", slow)
    desk = bus.client(transport, Desk)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(bus.within(desk, 0.5 if number % 2 else 20).ask, CTX, f"{'late' if number % 2 else 'ok'}")
                 for number in range(20)]
        failed = [call.exception() for call in calls]
    assert clerk.seen == ["ok"] * 10
    assert [isinstance(error, exception.ServiceUnavailable) for error in failed] == [False, True] * 10


def test_what_is_asked_for_a_caller_ends_with_its_deadline(transport, clerk):
    desk = bus.client(transport, Desk)
    with context.wanted_until(time.monotonic() - 0.01), pytest.raises(exception.ServiceUnavailable):
        desk.ask(CTX, "too late")
    clerk.open.clear()
    begin = time.monotonic()
    with context.wanted_until(begin + 0.5), pytest.raises(exception.ServiceUnavailable):
        desk.ask(CTX, "in time")
    assert time.monotonic() - begin < SECONDS / 2
    assert clerk.seen == ["in time"]
