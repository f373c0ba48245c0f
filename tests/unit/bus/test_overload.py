"""Overloaded servers, expired messages and callers without an answer."""

import concurrent.futures
import threading
import time

import pytest
from oslo_config import cfg

from nova import bus, context, exception
from nova.bus import circuit
from nova.bus.driver import requests
from nova.telemetry import metrics
from tests.polling import poll

CTX = context.RequestContext(user_id="u", project_id="p", roles=["member"], overwrite=False)
SECONDS = 20


class Echo(bus.Interface):
    topic = "echo"
    namespace = "echo"

    @bus.call
    def ask(self, ctx: context.RequestContext, name: str) -> bool: ...

    @bus.cast
    def note(self, ctx: context.RequestContext, name: str) -> None: ...

    @bus.brief_cast(0.3)
    def whisper(self, ctx: context.RequestContext, name: str) -> None: ...


class Implementation:
    """An implementation that answers while ``open`` is set; ``seen`` lists the calls that started."""

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
def implementation(transport):
    made = Implementation()
    server = bus.serve(transport, "echo", "h1", [(Echo, made)], threads=2)
    yield made
    made.open.set()
    bus.stop_taking(server)
    server.wait()


def eventually(condition):
    assert poll(condition, SECONDS, 0.01)


def fill(implementation, proxy):
    """Occupy both threads of the server until ``open`` is set."""
    implementation.open.clear()
    for name in ("first", "second"):
        proxy.note(CTX, name)
    eventually(lambda: len(implementation.seen) == 2)


def test_call_with_a_timed_out_caller_is_not_run(transport, implementation):
    proxy = bus.client(transport, Echo)
    fill(implementation, proxy)
    with pytest.raises(exception.ServiceUnavailable):
        bus.within(proxy, 0.2).ask(CTX, "late")
    implementation.open.set()
    assert proxy.ask(CTX, "in time") is False
    assert implementation.seen == ["first", "second", "in time"]


def test_expired_cast_is_dropped(transport, implementation):
    proxy = bus.client(transport, Echo)
    fill(implementation, proxy)
    proxy.whisper(CTX, "brief")
    proxy.note(CTX, "long")
    time.sleep(0.4)
    implementation.open.set()
    eventually(lambda: "long" in implementation.seen)
    assert "brief" not in implementation.seen


def test_request_that_expires_while_waiting_for_a_thread_is_dropped_and_counted(transport, implementation, monkeypatch):
    dropped, thread = [], requests.Request.acknowledge
    monkeypatch.setattr(metrics.BUS_DROPPED, "inc", dropped.append)
    proxy = bus.client(transport, Echo)

    def late(request):
        if request.message["method"] == "whisper":
            time.sleep(0.4)
        thread(request)

    monkeypatch.setattr(requests.Request, "acknowledge", late)
    proxy.whisper(CTX, "brief")
    eventually(lambda: dropped == ["echo.whisper"])
    assert implementation.seen == []


def test_handler_can_check_if_its_caller_has_timed_out(transport, implementation):
    proxy, expired = bus.client(transport, Echo), []
    assert proxy.ask(CTX, "in time") is False
    implementation.open.wait = lambda _seconds: (time.sleep(2.0), expired.append(context.too_late()))
    with pytest.raises(exception.ServiceUnavailable):
        bus.within(proxy, 1.0).ask(CTX, "late")  # a busy machine starts it in this time
    eventually(lambda: expired == [True])


def test_server_consumes_no_more_messages_than_it_has_threads(transport, implementation):
    """Messages that a busy server does not take are handled by another server."""
    proxy = bus.client(transport, Echo)
    fill(implementation, proxy)
    for number in range(20):
        proxy.note(CTX, f"note {number}")
    other = Implementation()
    server = bus.serve(transport, "echo", "h2", [(Echo, other)], threads=2)
    eventually(lambda: len(other.seen) >= 15)
    implementation.open.set()
    eventually(lambda: len(other.seen) + len(implementation.seen) == 22)
    bus.stop_taking(server)
    server.wait()


def test_busy_server_can_be_stopped_and_leaves_messages_to_another(transport):
    implementation, proxy = Implementation(), bus.client(transport, Echo)
    server = bus.serve(transport, "echo", "h1", [(Echo, implementation)], threads=2)
    fill(implementation, proxy)
    proxy.note(CTX, "third")
    stopping = threading.Thread(target=bus.stop_taking, args=(server,))
    stopping.start()
    stopping.join(SECONDS)
    assert not stopping.is_alive()
    implementation.open.set()
    server.wait()
    other = Implementation()
    successor = bus.serve(transport, "echo", "h2", [(Echo, other)], threads=2)
    eventually(lambda: sorted(implementation.seen + other.seen) == ["first", "second", "third"])
    bus.stop_taking(successor)
    successor.wait()


# --- missing replies ---------------------------------------------------------------------------------------
@pytest.fixture
def hasty(monkeypatch):
    """Shorten the timeouts of the circuit breaker."""
    for name, value in {"_SUSPECT": 0.2, "_PAUSE": 0.05, "_PING_TIMEOUT": 0.2}.items():
        monkeypatch.setattr(circuit, name, value)


def silence(proxy):
    """Make calls until the circuit opens and they fail immediately."""
    def at_once():
        started = time.monotonic()
        with pytest.raises(exception.ServiceUnavailable):
            bus.within(proxy, 0.5).ask(CTX, "anybody?")
        return time.monotonic() - started < 0.3

    eventually(at_once)


@pytest.mark.usefixtures("hasty")
def test_without_a_server_calls_fail_fast_until_a_server_starts(transport, implementation):
    proxy = bus.client(transport, Echo)
    fill(implementation, proxy)
    silence(proxy)
    implementation.open.set()

    def answered():
        try:
            return proxy.ask(CTX, "hello") is False
        except exception.ServiceUnavailable:
            return False

    eventually(answered)
    assert not [name for name in implementation.seen if name == "anybody?"]


def test_call_without_a_server_fails_at_its_own_deadline(request):
    """The call does not wait for the whole time that a restarting server gets."""
    transport = bus.connect(cfg.CONF, url=f"kombu+memory://{request.node.name}")
    started = time.monotonic()
    with pytest.raises(exception.NoListeners):
        bus.within(bus.client(transport, Echo), 0.5).ask(CTX, "anybody?")
    assert time.monotonic() - started < 0.5 + 1
    transport.cleanup()


@pytest.mark.usefixtures("hasty")
def test_long_call_does_not_open_the_circuit(transport, implementation):
    proxy = bus.client(transport, Echo)
    implementation.open.clear()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        slow = pool.submit(proxy.ask, CTX, "slow")
        eventually(lambda: implementation.seen)
        time.sleep(1)
        quick = pool.submit(proxy.ask, CTX, "quick")
        eventually(lambda: len(implementation.seen) == 2)
        implementation.open.set()
        assert (slow.result(SECONDS), quick.result(SECONDS)) == (False, False)


def test_retry_once_returns_the_second_reply():
    answers = [exception.ServiceUnavailable("frozen"), "alive"]

    def ask():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert bus.retry_once(ask) == "alive"
    answers[:] = [exception.ServiceUnavailable("frozen"), exception.ServiceUnavailable("frozen, too")]
    with pytest.raises(exception.ServiceUnavailable, match="too"):
        bus.retry_once(ask)


def test_no_call_runs_after_its_deadline(transport, implementation, monkeypatch):
    """The deadline also applies if the thread had to wait or the arguments took long to decode."""
    admit = bus.server.Authorizer.authorize

    def slow(self, ctx, payload):
        args = admit(self, ctx, payload)
        while args.name.startswith("late") and not context.too_late():
            time.sleep(0.01)
        return args

    monkeypatch.setattr(bus.server.Authorizer, "authorize", slow)
    proxy = bus.client(transport, Echo)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(bus.within(proxy, 0.5 if number % 2 else 20).ask, CTX, f"{'late' if number % 2 else 'ok'}")
                 for number in range(20)]
        failed = [call.exception() for call in calls]
    assert implementation.seen == ["ok"] * 10
    assert [isinstance(error, exception.ServiceUnavailable) for error in failed] == [False, True] * 10


def test_nested_calls_end_with_the_deadline_of_the_caller(transport, implementation):
    proxy = bus.client(transport, Echo)
    with context.deadline(time.monotonic() - 0.01), pytest.raises(exception.ServiceUnavailable):
        proxy.ask(CTX, "too late")
    implementation.open.clear()
    begin = time.monotonic()
    with context.deadline(begin + 0.5), pytest.raises(exception.ServiceUnavailable):
        proxy.ask(CTX, "in time")
    assert time.monotonic() - begin < SECONDS / 2
    assert implementation.seen == ["in time"]
