"""The metadata service of one host and all its sockets."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import threading
from typing import TYPE_CHECKING

from nova import bus
from nova.api.guest_metadata import namespaces
from nova.api.guest_metadata.app import Application
from nova.api.guest_metadata.instances import Instances
from nova.api.guest_metadata.namespaces import listen as listen
from nova.api.guest_metadata.server import Server
from nova.api.instrumentation import instrumented_metadata
from nova.conf import CONF
from nova.metadata import settings
from nova.network.linux import state_files
from nova.rpcapi.by_hosts import Guests
from nova.rpcapi.servers import Servers

if TYPE_CHECKING:  # nova.bus must load oslo.messaging first, to choose its thread back end.
    import oslo_messaging as messaging

LOG = logging.getLogger(__name__)


class MetadataService:
    """The metadata service at [metadata]listen and inside the namespaces of the host's networks. ``channel``: source of
    the sockets in namespaces, if another process creates them. ``secure``: the TLS context of [metadata]listen, if any;
    guests use plain HTTP only."""

    def __init__(self, transport: messaging.RPCTransport, channel: socket.socket | None = None,
                 secure: ssl.SSLContext | None = None) -> None:
        self._channel, self._secure = channel, secure
        instances = Instances(bus.client(transport, Guests), bus.client(transport, Servers),
                              CONF.metadata.cache_expiration, has=state_files.StateFiles(CONF.state_path).has_address)
        application = Application(instances, settings.from_conf(CONF), CONF.metadata.metadata_proxy_shared_secret)
        self._server = Server(instrumented_metadata(application), CONF.metadata.threads, tenant_of=instances.tenant_of)
        # Set when the process that opens the sockets has exited.
        self.left_alone = threading.Event()
        self._stop = threading.Event()
        self._watcher: threading.Thread | None = None

    def start(self) -> None:
        """Start the service. Raises OSError if [metadata]listen is unavailable."""
        listener = listen((CONF.metadata.listen, CONF.metadata.port))
        self._server.start()
        self._server.add("proxies", listener, trusted=True, secure=self._secure)
        LOG.info("Metadata service listens on %s:%d%s", CONF.metadata.listen, CONF.metadata.port,
                 " (TLS)" if self._secure else "")
        if self._channel is not None:
            namespaces.receive(self._channel, self._server, self.left_alone.set)
        elif CONF.metadata.namespaces and os.geteuid() != 0:
            LOG.warning("Serving metadata to proxies only: entering network namespaces requires root")
        elif CONF.metadata.namespaces:
            watcher = namespaces.NamespaceWatcher(self._server, CONF.state_path)
            self._watcher = threading.Thread(target=watcher.run, args=(self._stop,), name="metadata-watch", daemon=True)
            self._watcher.start()

    def stop(self) -> None:
        self._stop.set()
        if self._watcher is not None:
            self._watcher.join(5)
        self._server.stop()
