"""Identification of the requesting instance, with a short cache: a booting guest sends dozens of requests."""

import threading
import time
from collections.abc import Callable

from nova import bus, context, exception
from nova.api.healthcheck import PROBE_TIMEOUT
from nova.conf import CONF
from nova.objects.servers.instance import Instance
from nova.rpcapi.by_hosts import Guests
from nova.rpcapi.servers import Servers

# Maximum number of cached instances.
SIZE = 2000
# Maximum seconds for which "no such instance" is cached, so that guests cannot flood the message bus.
MISSING = 1.0

# A function of network id, address and instance uuid. True: this host has plugged the instance with this address.
HasAddress = Callable[[str, str, str], bool]


class Instances:
    """A cache of instances. Raises InstanceNotFound and ServiceUnavailable like the conductor."""

    def __init__(self, guests: Guests, servers: Servers, expiration: float,
                 clock: Callable[[], float] = time.monotonic, has: HasAddress = lambda *_: True) -> None:
        """``has``: returns True if this host has plugged the instance into the network with the address."""
        self._guests, self._servers = guests, servers
        self._expiration, self._clock, self._has = expiration, clock, has
        self._lock = threading.Lock()
        self._cache: dict[tuple[str, ...], tuple[float, Instance | None]] = {}

    def by_address(self, network_id: str, address: str) -> Instance:
        """Return the instance with a fixed address. Raises InstanceNotFound unless this host has plugged the instance:
        the guest of a server that was deleted while this host was down may use an address that belongs to a server on
        another host now. An outdated cached instance is replaced."""
        key = ("address", network_id, address)

        def ask() -> Instance:
            return self._guests.by_address(context.admin(), network_id, address)

        for _attempt in range(2):
            instance = self._cached(key, ask)
            if self._has(network_id, address, instance.uuid):
                return instance
            with self._lock:
                self._cache.pop(key, None)
        self._keep(key, self._clock() + min(MISSING, self._expiration), None)
        raise exception.InstanceNotFound(instance_id=address)

    def check_conductor(self) -> None:
        """Raise ServiceUnavailable if no conductor answers within the timeout of a health check."""
        bus.within(self._guests, PROBE_TIMEOUT).evictions(context.admin(), CONF.host, limit=1)

    def tenant_of(self, network_id: str, address: str) -> str:
        """Return the project of the server with this address if the server is cached, else the id of the network."""
        with self._lock:
            _until, instance = self._cache.get(("address", network_id, address), (0.0, None))
        return network_id if instance is None else instance.project_id

    def by_uuid(self, uuid: str) -> Instance:
        return self._cached(("uuid", uuid), lambda: self._servers.get(context.admin(), uuid))

    def set_password(self, instance: Instance, items: dict[str, str]) -> None:
        """Store the password that a guest posted. Raises Conflict if the guest has posted a password before."""
        self._guests.set_password(context.admin(), instance.uuid, items)
        with self._lock:
            self._cache = {key: entry for key, entry in self._cache.items()
                           if entry[1] is None or entry[1].uuid != instance.uuid}

    def _cached(self, key: tuple[str, ...], ask: Callable[[], Instance]) -> Instance:
        now = self._clock()
        with self._lock:
            until, cached = self._cache.get(key, (0.0, None))
        if until > now:
            if cached is None:
                raise exception.InstanceNotFound(instance_id=key[-1])
            return cached
        try:
            instance = ask()
        except exception.InstanceNotFound:
            self._keep(key, now + min(MISSING, self._expiration), None)
            raise
        self._keep(key, now + self._expiration, instance)
        return instance

    def _keep(self, key: tuple[str, ...], until: float, instance: Instance | None) -> None:
        with self._lock:
            if len(self._cache) >= SIZE:
                now = self._clock()
                self._cache = {old: entry for old, entry in self._cache.items() if entry[0] > now}
            if len(self._cache) < SIZE:
                self._cache[key] = (until, instance)
