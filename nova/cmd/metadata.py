"""The command nova-metadata: the metadata service of this host.

Started as root it consists of two processes. The first runs as root, opens sockets in the network namespaces and parses
no input. The second runs as [metadata]user and answers requests."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import socket
import ssl
import sys
import threading
from typing import TYPE_CHECKING

from nova.service import run  # isort: skip  (chooses oslo.service's threading back end)

from kombu.transport import TRANSPORT_ALIASES

import nova.conf
from nova import bus, exception
from nova.api.guest_metadata import namespaces
from nova.api.guest_metadata.service import MetadataService
from nova.conf import CONF
from nova.http import tls
from nova.telemetry import exporters, tracing

if TYPE_CHECKING:
    import oslo_messaging as messaging

LOG = logging.getLogger(__name__)

# Seconds between two checks that the other process runs; seconds after SIGTERM until it is killed.
_CHECK_INTERVAL = 0.2
_END_TIMEOUT = 15.0
# Modules that the message bus imports at first use. They are imported before the change of the user, who may be unable
# to read the code of Python or Nova, for example in a home directory.
_IMPORTED_AT_FIRST_USE = (TRANSPORT_ALIASES["amqp"].partition(":")[0], "difflib", "encodings.idna")


def main() -> int:
    """Run the metadata service until SIGTERM or SIGINT."""
    nova.conf.load(sys.argv[1:])
    tracing.check("nova-metadata")
    run.check_key("nova-metadata")
    transport = bus.connect(CONF)  # as root, who may read the key for signing and the key of the certificate
    try:
        secure = tls.context("metadata")
    except exception.InvalidInput as error:
        raise SystemExit(f"nova-metadata: {error.message}") from error
    if not CONF.metadata.namespaces or os.geteuid() != 0:
        return _serve(transport, None, secure)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if child:
        theirs.close()
        return _open_sockets(ours, child)
    ours.close()
    for name in _IMPORTED_AT_FIRST_USE:
        importlib.import_module(name)
    namespaces.become(CONF.metadata.user)
    return _serve(transport, theirs, secure)


def _serve(transport: messaging.RPCTransport, channel: socket.socket | None, secure: ssl.SSLContext | None) -> int:
    stop = run.stop_event()
    exporters.start_metrics("nova-metadata")
    exporters.start_tracing("nova-metadata")
    service = MetadataService(transport, channel, secure)
    bus.prepare()
    try:
        service.start()
    except OSError as error:
        LOG.error("nova-metadata exits: cannot listen on %s:%d: %s", CONF.metadata.listen, CONF.metadata.port, error)
        return 1
    while not stop.wait(_CHECK_INTERVAL) and not service.left_alone.is_set():
        pass
    service.stop()
    exporters.stop_tracing()
    LOG.info("Metadata service stopped")
    return 0 if stop.is_set() else 1


def _open_sockets(channel: socket.socket, child: int) -> int:
    """Open sockets for the child process until SIGTERM, SIGINT or the end of the child."""
    stop, ended = run.stop_event(), threading.Event()
    status: list[int] = []

    def wait_for_child() -> None:
        status.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        ended.set()
        stop.set()

    threading.Thread(target=wait_for_child, name="metadata-child", daemon=True).start()
    namespaces.NamespaceWatcher(namespaces.Sender(channel), CONF.state_path).run(stop)
    if not ended.is_set():
        os.kill(child, signal.SIGTERM)
        if not ended.wait(_END_TIMEOUT):
            os.kill(child, signal.SIGKILL)
            ended.wait()
        return 0
    LOG.error("The process that answers requests ended with exit code %s; nova-metadata stops",
              status[0] if status else "?")
    return 1


if __name__ == "__main__":
    sys.exit(main())
