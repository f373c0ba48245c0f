"""A circuit breaker for each topic: while no server answers, calls fail immediately and do not block their threads.

The circuit opens when the broker reports no consumer, or when calls and pings got no reply. While it is open, a ping
per second detects when a server answers again."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import oslo_messaging as messaging

from nova import exception
from nova.bus.broker import listeners
from nova.bus.deadlines import stamp

LOG = logging.getLogger(__name__)

_SUSPECT = 3.0  # seconds without a reply to any waiting call after which a topic is pinged
_GRACE = 5.0  # seconds for which calls wait for a consumer before they fail (a service may be restarting)
_FRESH = 1.0  # seconds for which a reply proves that a server is running
# Seconds between two pings, timeout of a ping, and number of failed pings after which the circuit opens.
_PAUSE, _PING_TIMEOUT, _MAX_FAILED_PINGS = 0.5, 2.0, 2


class Ping:
    """The ping method that every server has besides its interfaces."""

    target = messaging.Target(namespace="bus", version="1.0")

    @staticmethod
    def ping(_ctx: object) -> bool:
        return True


class Circuit:
    """The circuit breaker of one topic in this process. Thread-safe."""

    def __init__(self, bus: messaging.RPCTransport, topic: str) -> None:
        self._bus, self._topic = bus, topic
        self._lock = threading.Lock()
        self._open = False
        self._pinging = False
        self._answered_at = 0.0
        self._waiting: dict[int, float] = {}  # number of a waiting call -> monotonic time at which it was sent
        self._next = 0

    @contextmanager
    def call(self, seconds: float) -> Iterator[None]:
        """Guard the call in the block, which ends within ``seconds``. Raises NoListeners while the circuit is open."""
        now = time.monotonic()
        with self._lock:
            fresh = now - self._answered_at < _FRESH
            self._next += 1
            number, self._waiting[self._next] = self._next, now
            oldest = min(self._waiting.values())
            suspect = self._open or oldest < now - _SUSPECT > self._answered_at
        try:
            if suspect:
                self._start_pings()
            if self._open or not (fresh or self._await_listeners(seconds)):
                raise exception.NoListeners(f"No service answers at {self._topic}.")
            yield
        except messaging.MessagingTimeout:
            if self._answered_at < now:
                self._start_pings()
            raise
        else:
            self.answered()
        finally:
            with self._lock:
                del self._waiting[number]

    def answered(self) -> None:
        """Record a reply of the service: calls are allowed again."""
        self._answered_at = time.monotonic()
        if self._open:
            LOG.info("A service responds at %s again: calls are allowed", self._topic)
            self._open = False

    def _await_listeners(self, seconds: float) -> bool:
        """Return True if the topic has a consumer now or within _GRACE seconds, or ``seconds`` if that is less."""
        started = time.monotonic()
        while listeners(self._bus, self._topic, seconds) == 0:
            waited = time.monotonic() - started
            if self._open or waited > _GRACE:
                self._open_circuit()
                self._start_pings()
                return False
            if waited + _PAUSE / 2 > seconds:
                return False
            time.sleep(_PAUSE / 2)
        return True

    def _open_circuit(self) -> None:
        if not self._open:
            LOG.warning("No service answers at %s: calls fail immediately until one answers", self._topic)
            self._open = True

    def _start_pings(self) -> None:
        """Start a thread that pings the topic until a server answers."""
        with self._lock:
            if self._pinging:
                return
            self._pinging = True
        threading.Thread(target=self._ping, name=f"ping-{self._topic}", daemon=True).start()

    def _ping(self) -> None:
        missed = 0
        try:
            target = messaging.Target(topic=self._topic, namespace=Ping.target.namespace)
            client = messaging.get_rpc_client(self._bus, target)
            while True:
                started = time.monotonic()
                try:
                    if listeners(self._bus, self._topic, _PING_TIMEOUT) != 0:
                        client.prepare(timeout=_PING_TIMEOUT, retry=0).call(stamp(_PING_TIMEOUT), "ping")
                        self.answered()
                except messaging.RemoteError:  # a server of a release without pings
                    self.answered()
                except Exception as error:
                    LOG.debug("No reply to a ping at %s: %s", self._topic, error)
                if self._answered_at >= started:
                    return
                missed += 1
                if missed >= _MAX_FAILED_PINGS:
                    self._open_circuit()
                time.sleep(_PAUSE)
        finally:
            self._pinging = False


_CIRCUITS: weakref.WeakKeyDictionary[messaging.RPCTransport, dict[str, Circuit]] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def circuit(bus: messaging.RPCTransport, topic: str) -> Circuit:
    """Return the circuit breaker of a topic."""
    with _LOCK:
        made = _CIRCUITS.setdefault(bus, {})
        if topic not in made:
            made[topic] = Circuit(bus, topic)
        return made[topic]
