"""The metadata service of one host: its sockets, wherever they are."""

from __future__ import annotations

import logging
import os
import socket
import threading
from typing import TYPE_CHECKING

from nova import bus
from nova.api.guest_metadata.app import NETWORK, Application
from nova.api.guest_metadata.instances import Instances
from nova.api.guest_metadata.server import Server
from nova.api.observed import Wsgi, observed_metadata
from nova.conf import CONF
from nova.metadata import settings
from nova.network import netns, records
from nova.rpcapi.guests import Guests
from nova.rpcapi.servers import Servers

if TYPE_CHECKING:  # nova.bus must load oslo.messaging, to choose its threads
    import oslo_messaging as messaging

LOG = logging.getLogger(__name__)

ADDRESS = ("169.254.169.254", 80)
# Seconds between two looks for networks that came or went.
INTERVAL = 1.0


def instances_of(transport: messaging.RPCTransport) -> Instances:
    """What is known of the guests of this host."""
    return Instances(bus.client(transport, Guests), bus.client(transport, Servers),
                     CONF.metadata.cache_expiration, has=records.Records(CONF.state_path).has_address)


def application(instances: Instances) -> Wsgi:
    """The WSGI application, for any server."""
    return observed_metadata(
        Application(instances, settings.from_conf(CONF), CONF.metadata.metadata_proxy_shared_secret))


class MetadataService:
    """Answers at [metadata]listen, and inside the namespaces of the host's networks."""

    def __init__(self, transport: messaging.RPCTransport) -> None:
        instances = instances_of(transport)
        self._server = Server(application(instances), CONF.metadata.threads, tenant_of=instances.tenant_of)
        self._stop = threading.Event()
        self._watcher: threading.Thread | None = None

    def start(self) -> None:
        """Raises OSError when [metadata]listen cannot be had."""
        listener = listen((CONF.metadata.listen, CONF.metadata.port))
        self._server.start()
        self._server.add("proxies", listener, trusted=True)
        LOG.info("Metadata service listens on %s:%d", CONF.metadata.listen, CONF.metadata.port)
        if not CONF.metadata.namespaces:
            return
        if os.geteuid() != 0:
            LOG.warning("Only root may enter network namespaces: metadata is for proxies only")
            return
        watcher = NamespaceWatcher(self._server, CONF.state_path)
        self._watcher = threading.Thread(target=watcher.run, args=(self._stop,), name="metadata-watch", daemon=True)
        self._watcher.start()

    def stop(self) -> None:
        self._stop.set()
        if self._watcher is not None:
            self._watcher.join(5)
        self._server.stop()


class NamespaceWatcher:
    """Has one listening socket in the namespace of each network that is plugged on this host."""

    def __init__(self, server: Server, state_path: str) -> None:
        self._server = server
        self._records = records.Records(state_path)
        self._open: dict[str, tuple[int, int]] = {}
        self._failed: set[str] = set()

    def run(self, stop: threading.Event) -> None:
        while True:
            try:
                self.look()
            except Exception:
                LOG.exception("Could not look for networks")
            if stop.wait(INTERVAL):
                return

    def look(self) -> None:
        """Compare the sockets with the namespaces of now."""
        wanted = {}
        for network_id in self._records.networks():
            namespace = netns.identity(records.namespace(network_id))
            if namespace is not None:
                wanted[network_id] = namespace
        for network_id in [known for known, namespace in self._open.items() if wanted.get(known) != namespace]:
            self._server.remove(network_id)
            del self._open[network_id]
            LOG.info("Metadata of network %s ends: its namespace is gone", network_id)
        for network_id in wanted.keys() - self._open.keys():
            self._listen(network_id, wanted[network_id])
        self._failed &= wanted.keys()

    def _listen(self, network_id: str, namespace: tuple[int, int]) -> None:
        try:
            sock = netns.call(records.namespace(network_id), lambda: listen(ADDRESS))
        except OSError as error:
            # The namespace may be in the making: the next look tries again.
            if network_id not in self._failed:
                LOG.debug("Not yet listening on network %s: %s", network_id, error)
            self._failed.add(network_id)
            return
        self._server.add(network_id, sock, {NETWORK: network_id})
        self._open[network_id] = namespace
        LOG.info("Metadata of network %s is served in namespace %s", network_id, records.namespace(network_id))


def listen(address: tuple[str, int]) -> socket.socket:
    """A listening socket in the namespace of the calling thread."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(128)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock
