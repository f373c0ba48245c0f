"""The connection to libvirt: made on demand, monitored, and renewed when libvirtd restarts.

libvirt needs one thread of the process for its events. The thread starts before the first connection."""

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import libvirt

from nova import exception
from nova.conf import CONF
from nova.virt.libvirt import errors

LOG = logging.getLogger(__name__)

T = TypeVar("T")

# A connection without a response for KEEPALIVE_INTERVAL * KEEPALIVE_COUNT seconds is closed.
KEEPALIVE_INTERVAL = 5
KEEPALIVE_COUNT = 5
# Seconds between two attempts to connect.
RETRY_INTERVAL = 1.0

_loop_lock = threading.Lock()


@functools.cache
def _start_event_loop() -> None:
    """Start the event loop once per process, before the first connection. The caller must hold the loop's lock."""
    # libvirt would print every error to stderr, including expected ones.
    libvirt.registerErrorHandler(lambda _context, _error: None, None)
    libvirt.virEventRegisterDefaultImpl()
    threading.Thread(target=_run_events, name="libvirt-events", daemon=True).start()


def _run_events() -> None:
    while True:
        try:
            libvirt.virEventRunDefaultImpl()
        except libvirt.libvirtError:
            LOG.exception("Unexpected error in libvirt's event loop, continuing")
            time.sleep(RETRY_INTERVAL)


class Host:
    """The connection of one driver. ``on_lifecycle(uuid)`` is called in libvirt's thread when the state of any domain
    changed; ``on_connected()`` after every new connection; ``on_unreachable(error)`` once per outage."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.on_lifecycle: Callable[[str], None] | None = None
        self.on_connected: Callable[[], None] | None = None
        self.on_unreachable: Callable[[exception.NovaException], None] | None = None
        self._connection: libvirt.virConnect | None = None
        self._registrations: list[int] = []
        self._lock = threading.Lock()
        self._lost = threading.Event()
        self._stopped = threading.Event()
        self._watcher: threading.Thread | None = None
        self._waiting: dict[str, set[threading.Event]] = {}

    def start(self) -> None:
        """Connect and stay connected until stop(). Raises HypervisorUnavailable if libvirtd does not respond."""
        self._stopped.clear()
        self.call(lambda connection: None)
        self._watcher = threading.Thread(target=self._watch, name="libvirt-watch", daemon=True)
        self._watcher.start()

    def stop(self) -> None:
        self._stopped.set()
        self._lost.set()
        if self._watcher is not None:
            self._watcher.join(timeout=10)
        with self._lock:
            self._close()

    def connection(self) -> libvirt.virConnect:
        """Return the live connection, renewed if it was lost. Raises HypervisorUnavailable."""
        fresh = False
        with self._lock:
            if self._connection is not None and not _alive(self._connection):
                self._close()
            if self._connection is None:
                self._connection = self._connect()
                fresh = True
            connection = self._connection
        if fresh and self.on_connected is not None:
            self.on_connected()
        return connection

    def call(self, function: Callable[[libvirt.virConnect], T], uuid: str = "") -> T:
        """Call ``function(connection)``, which must be repeatable: it is called again after a restart of libvirtd.
        Raises HypervisorUnavailable after [libvirt]reconnect_timeout, and the errors of errors.translate()."""
        timeout = CONF.libvirt.reconnect_timeout
        lost_at: float | None = None
        while True:
            began = time.monotonic()
            try:
                return function(self.connection())
            except libvirt.libvirtError as error:
                if not errors.is_disconnect(error):
                    raise errors.translate(error, CONF.host, uuid) from error
                self._lost.set()
                LOG.warning("Lost the connection to libvirt, reconnecting: %s", error)
                failure: Exception = exception.HypervisorUnavailable(reason=CONF.host)
            except exception.HypervisorUnavailable as error:
                failure = error
            # A call that ran for longer than the timeout met a second outage: the timeout starts again.
            now = time.monotonic()
            lost_at = now if lost_at is None or now - began > timeout else lost_at
            if now - lost_at >= timeout or self._stopped.wait(RETRY_INTERVAL):
                raise failure

    @contextlib.contextmanager
    def changes_of(self, uuid: str) -> Iterator[Callable[[float], bool]]:
        """Yield a function wait(seconds), which waits for the next change of the guest since the previous wait()."""
        changed = threading.Event()
        with self._lock:
            self._waiting.setdefault(uuid, set()).add(changed)

        def wait(seconds: float) -> bool:
            came = changed.wait(seconds)
            changed.clear()
            return came

        try:
            yield wait
        finally:
            with self._lock:
                self._waiting[uuid].discard(changed)
                if not self._waiting[uuid]:
                    del self._waiting[uuid]

    def _connect(self) -> libvirt.virConnect:
        with _loop_lock:
            _start_event_loop()
        try:
            connection = libvirt.open(self.uri)
            connection.setKeepAlive(KEEPALIVE_INTERVAL, KEEPALIVE_COUNT)
            connection.registerCloseCallback(self._closed, None)
            self._registrations = [connection.domainEventRegisterAny(None, event, handler, None) for event, handler in (
                (libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, self._lifecycle),
                (libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED, lambda _connection, domain, *_details: self._wake(
                    domain.UUIDString())))]
        except libvirt.libvirtError as error:
            LOG.debug("Cannot connect to libvirt at %s: %s", self.uri, error)
            raise exception.HypervisorUnavailable(reason=CONF.host) from error
        self._lost.clear()
        LOG.info("Connected to libvirt at %s", self.uri)
        return connection

    def _close(self) -> None:
        """Close the connection, and ignore the errors of a dead connection. The caller holds the lock."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        deregistrations = [functools.partial(connection.domainEventDeregisterAny, registration)
                           for registration in self._registrations]
        for step in (*deregistrations, connection.unregisterCloseCallback, connection.close):
            with contextlib.suppress(libvirt.libvirtError):
                step()

    def _closed(self, _connection: libvirt.virConnect, reason: int, _opaque: object) -> None:
        if not self._stopped.is_set():
            LOG.warning("The connection to libvirt was closed (reason %s), reconnecting", reason)
            self._lost.set()

    def _lifecycle(self, _connection: libvirt.virConnect, domain: libvirt.virDomain, event: int, _detail: int,
                   _opaque: object) -> None:
        # A new definition alone does not change a running guest.
        if event == libvirt.VIR_DOMAIN_EVENT_DEFINED:
            return
        uuid = domain.UUIDString()
        self._wake(uuid)
        if self.on_lifecycle is not None:
            self.on_lifecycle(uuid)

    def _wake(self, uuid: str) -> None:
        for changed in tuple(self._waiting.get(uuid, ())):
            changed.set()

    def _watch(self) -> None:
        """Reconnect as soon as libvirtd is back, so that events are received even without requests."""
        reported = False
        while not self._stopped.is_set():
            self._lost.wait()
            if self._stopped.is_set():
                return
            try:
                self.connection()
                self._lost.clear()
                reported = False
            except exception.HypervisorUnavailable as error:
                if not reported and self.on_unreachable is not None:
                    self.on_unreachable(error)
                reported = True
                self._stopped.wait(RETRY_INTERVAL)
            except Exception:
                LOG.exception("Reconnecting to libvirt failed, retrying")
                self._stopped.wait(RETRY_INTERVAL)


def _alive(connection: libvirt.virConnect) -> bool:
    try:
        return bool(connection.isAlive())
    except libvirt.libvirtError:
        return False
