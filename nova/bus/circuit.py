"""Whether anybody answers at a topic: when nobody does, calls fail at once rather than hold their threads.

Nobody does when the broker says that nobody listens, or when calls got no answer and nobody answers a ping. From
then on pings find out when somebody is back; they are a message a second, and only then.
"""

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

# Seconds after which a topic is asked whether it is there, if calls wait and nobody has answered one.
_SUSPECT = 3.0
# Seconds that nobody may listen (a service that is restarted alone) before calls fail.
_GRACE = 5.0
# Seconds that an answer is proof of somebody who listens.
_FRESH = 1.0
# Seconds between two pings, for an answer to one, and how many in a row without one mean that nobody is there.
_PAUSE, _PING, _PINGS = 0.5, 2.0, 2


class Ping:
    """What every server answers besides its interfaces."""

    target = messaging.Target(namespace="bus", version="1.0")

    @staticmethod
    def ping(_ctx: object) -> bool:
        return True


class Circuit:
    """Of one topic, in this process. Thread-safe."""

    def __init__(self, bus: messaging.RPCTransport, topic: str) -> None:
        self._bus = bus
        self._topic = topic
        self._lock = threading.Lock()
        self._silent = False
        self._looking = False
        self._answered_at = 0.0
        # When the calls were sent that wait for an answer.
        self._waiting: dict[int, float] = {}
        self._next = 0

    @contextmanager
    def call(self) -> Iterator[None]:
        """A call is made in the block. Raises NobodyListens while nobody answers."""
        now = time.monotonic()
        with self._lock:
            fresh = now - self._answered_at < _FRESH
            self._next += 1
            number, self._waiting[self._next] = self._next, now
            oldest = min(self._waiting.values())
            suspect = self._silent or oldest < now - _SUSPECT > self._answered_at
        try:
            if suspect:
                self._look()
            if self._silent or not (fresh or self._await_listeners()):
                raise exception.NobodyListens(f"Nobody answers at {self._topic}.")
            yield
        except messaging.MessagingTimeout:
            if self._answered_at < now:
                self._look()
            raise
        else:
            self.answered()
        finally:
            with self._lock:
                del self._waiting[number]

    def answered(self) -> None:
        """Somebody is there."""
        self._answered_at = time.monotonic()
        if self._silent:
            LOG.info("Somebody answers at %s again", self._topic)
            self._silent = False

    def _await_listeners(self) -> bool:
        """Whether somebody listens, by now or within a moment."""
        until = time.monotonic() + _GRACE
        while listeners(self._bus, self._topic) == 0:
            if self._silent or time.monotonic() > until:
                self._fall_silent()
                self._look()
                return False
            time.sleep(_PAUSE / 2)
        return True

    def _fall_silent(self) -> None:
        if not self._silent:
            LOG.warning("Nobody answers at %s: calls to it fail at once until somebody does", self._topic)
            self._silent = True

    def _look(self) -> None:
        """Find out in the background whether somebody is there."""
        with self._lock:
            if self._looking:
                return
            self._looking = True
        threading.Thread(target=self._ping, name=f"ping-{self._topic}", daemon=True).start()

    def _ping(self) -> None:
        missed = 0
        try:
            target = messaging.Target(topic=self._topic, namespace=Ping.target.namespace)
            client = messaging.get_rpc_client(self._bus, target)
            while True:
                started = time.monotonic()
                try:
                    if listeners(self._bus, self._topic) != 0:
                        client.prepare(timeout=_PING, retry=0).call(stamp(_PING), "ping")
                        self.answered()
                except messaging.RemoteError:  # somebody older, who has never heard of pings
                    self.answered()
                except Exception as error:
                    LOG.debug("No answer to a ping at %s: %s", self._topic, error)
                if self._answered_at >= started:
                    return
                missed += 1
                if missed >= _PINGS:
                    self._fall_silent()
                time.sleep(_PAUSE)
        finally:
            self._looking = False


_CIRCUITS: weakref.WeakKeyDictionary[messaging.RPCTransport, dict[str, Circuit]] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def circuit(bus: messaging.RPCTransport, topic: str) -> Circuit:
    """The one of this topic."""
    with _LOCK:
        made = _CIRCUITS.setdefault(bus, {})
        if topic not in made:
            made[topic] = Circuit(bus, topic)
        return made[topic]
