"""Background publishers, which batch changes: usage of nodes, hosts of networks, DNS names and security groups."""

import abc
import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator

from nova import context, exception
from nova.conductor.feeds.deltas import FleetAnnouncer
from nova.db.hosts import compute_nodes, network_hosts
from nova.db.networks import floating_ip_dns, security_filters
from nova.db.servers import servers
from nova.db.sql.engine import Database
from nova.rpcapi.compute import Compute

LOG = logging.getLogger(__name__)

_LONGEST = 10.0  # maximum seconds between two attempts to publish
_RATE = 200  # maximum messages per second for one name


class Feed(abc.ABC):
    """A thread that collects the names of changed objects and publishes them at most every ``interval`` seconds."""

    name: str
    interval: float

    def __init__(self) -> None:
        self._touched: dict[str, float] = {}  # name -> earliest time of publication
        self._rests: dict[str, float] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    @abc.abstractmethod
    def publish(self, names: Collection[str]) -> None:
        """Publish the current state of these objects. Exceptions are logged, and the names are retried."""

    def rest(self, name: str, messages: int) -> None:
        """Delay the next publication of ``name`` in proportion to the number of messages of the current one."""
        self._rests[name] = time.monotonic() + messages / _RATE

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, then try once to publish all pending names."""
        self._stopped.set()
        self._wake.set()
        self._thread.join()
        self.flush(everything=True)

    def touch(self, names: Collection[str]) -> None:
        """Mark the objects as changed. Call after the commit."""
        if names:
            with self._lock:
                for name in names:
                    self._touched.setdefault(name, self._rests.get(name, 0.0))
            self._wake.set()

    def _run(self) -> None:
        failures = 0
        while not self._stopped.is_set():
            self._wake.wait()
            self._stopped.wait(self.interval if not failures else min(
                _LONGEST, self.interval * 2 ** min(failures, 10)))
            failures = 0 if self.flush() else failures + 1
            with self._lock:
                if not self._touched and not self._stopped.is_set():
                    self._wake.clear()

    def flush(self, everything: bool = False) -> bool:
        """Publish the changed names whose delay has passed. Return False on failure; the names stay pending."""
        now = time.monotonic()
        with self._lock:
            due = sorted(name for name, since in self._touched.items() if everything or since <= now)
            for name in due:
                del self._touched[name]
            self._rests = {name: until for name, until in self._rests.items() if until > now}
        if not due:
            return True
        try:
            self.publish(due)
            return True
        except Exception as error:
            LOG.warning("Cannot publish %d changes (%s), will retry: %s", len(due), self.name, error,
                        exc_info=LOG.isEnabledFor(logging.DEBUG))
            self.touch(due)
            return False


class UsageFeed(Feed):
    """A publisher of the usage of changed nodes to the schedulers. One message covers all nodes that changed since the
    previous message. Between two messages a scheduler counts its own selections; in any case the claim decides."""

    name = "usage"
    interval = 0.25

    def __init__(self, db: Database, fleet: FleetAnnouncer) -> None:
        super().__init__()
        self._db, self._fleet = db, fleet

    def publish(self, names: Collection[str]) -> None:
        self._fleet.usage(self._db.lookup(lambda connection: compute_nodes.usage(connection, sorted(names))))


class HostFeed(Feed):
    """A publisher whose messages go to hosts."""

    def __init__(self, db: Database, compute_at: Callable[[str], Compute]) -> None:
        super().__init__()
        self._db, self._compute_at = db, compute_at

    @contextlib.contextmanager
    def sending(self, host: str, what: str) -> Iterator[Compute]:
        """Yield the client for ``host``. Log a failure to send ``what``: the host requests missed changes itself."""
        try:
            yield self._compute_at(host)
        except exception.NovaException as error:
            LOG.warning("Cannot send %s to host %s, which requests missed changes later: %s", what, host, error)


class PeersFeed(HostFeed):
    """A publisher of tunneled networks whose set of hosts changed, to the hosts of these networks. A network set up
    on a thousand hosts changes a thousand times; the more hosts there are, the less often messages are sent."""

    name = "peers"
    interval = 0.2

    def publish(self, names: Collection[str]) -> None:
        changed = self._db.read(lambda connection: network_hosts.newer(connection, dict.fromkeys(names, 0)))
        for peers in changed:
            for host in peers.hosts:
                with self.sending(host, f"the peers of network {peers.network_id}") as compute:
                    compute.refresh_peers(context.admin(), peers)
            self.rest(peers.network_id, len(peers.hosts))


class NamesFeed(HostFeed):
    """A publisher of changed domains (DNS names of floating addresses) to all hosts, which answer queries of guests."""

    name = "names in the DNS"
    interval = 0.2

    def publish(self, names: Collection[str]) -> None:
        domains = sorted(names)
        for start in range(0, len(domains), floating_ip_dns.SERVED_AT_ONCE):
            page = domains[start:start + floating_ip_dns.SERVED_AT_ONCE]
            by_host = self._db.read(functools.partial(floating_ip_dns.served_changes, domains=page))
            for host, served in by_host.items():
                with self.sending(host, f"the names in {', '.join(page)}") as compute:
                    compute.refresh_names(context.admin(), served)
            for domain in page:
                self.rest(domain, len(by_host))


class FiltersFeed(HostFeed):
    """A publisher of changed groups (named by :mod:`nova.db.networks.security_filters`) to the hosts that use them. A
    host receives each group once, however many servers use it."""

    name = "security groups"
    interval = 0.1

    def publish(self, names: Collection[str]) -> None:
        hosts = self._db.read(lambda connection: security_filters.changed(connection, names))
        for host, filters in hosts.items():
            with self.sending(host, f"{len(filters)} changes of security groups") as compute:
                compute.refresh_groups(context.admin(), filters)
        for name in names:
            self.rest(name, len(hosts))

    def publish_server(self, uuid: str) -> None:
        """Send the rules of a server whose groups changed to its hosts. Call after the commit."""
        hosts, rules = self._db.read(lambda connection: (
            servers.places(connection, [uuid]).get(uuid, set()), security_filters.rules_for(connection, [uuid])[uuid]))
        for host in sorted(hosts):
            with self.sending(host, f"the new rules of server {uuid}") as compute:
                compute.refresh_rules(context.admin(), uuid, rules)
