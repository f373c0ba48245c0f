"""The command nova-api-ec2: the EC2 API in front of nova-api, and its service for nova-allinone."""

import logging
import multiprocessing
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from nova.service import run  # isort: skip  (chooses oslo.service's threading back end)

import cotyledon

from nova import bus, conf, exception
from nova.api import service as api_service
from nova.conf import CONF
from nova.ec2 import app
from nova.http import server, tls
from nova.http.limits import Limits
from nova.rpcapi.accounts import Ec2Ids
from nova.service import process
from nova.telemetry import exporters, tracing, worker_stats

LOG = logging.getLogger(__name__)

NAME = "nova-api-ec2"
_LINGER = 1.0  # seconds after SIGTERM in which requests are accepted, and each response closes its connection


def _server(shared: socket.socket, transport: Any, url: str,
            last: Callable[[], bool] = lambda: True, linger: float = 0.0) -> server.Server:
    """Return an HTTP server of the EC2 API, not yet prepared. Raises InvalidInput for bad TLS files."""
    application = app.Application(bus.client(transport, Ec2Ids), url, CONF.ec2.threads)
    limits = Limits(body_size=app.MOST_BODY, header_size=app.MOST_HEADER)
    return server.Server(shared, worker_stats.counted(application), CONF.ec2.threads, limits, app.error_body,
                         linger, last, timeout=CONF.graceful_shutdown_timeout, secure=tls.context("ec2"))


class Ec2Service(api_service.ServerThread):
    """The EC2 API for nova-allinone and tests. ``nova_url``: the REST API."""

    def __init__(self, transport: Any, nova_url: str, address: str, port: int) -> None:
        shared = api_service.listen(address, port)
        super().__init__(shared, _server(shared, transport, nova_url), address, "ec2")


class Worker(cotyledon.Service):
    """A worker process with a threaded HTTP server. It connects to the message bus after the fork."""

    name = NAME

    def __init__(self, worker_id: int, shared: socket.socket, ending: Callable[[], bool]) -> None:
        super().__init__(worker_id)  # type: ignore[arg-type]
        self._server = _server(shared, bus.connect(CONF), CONF.ec2.nova_url, ending, _LINGER)
        self._done = threading.Event()

    def run(self) -> None:
        process.start_memory_trimming()
        exporters.start_tracing(self.name)
        bus.prepare()
        self._server.prepare()
        threading.Thread(target=self._serve, name="serve", daemon=True).start()
        self._done.wait()

    def _serve(self) -> None:
        try:
            self._server.serve()
        finally:
            self._done.set()

    def terminate(self) -> None:
        """Stop accepting requests, and answer the requests that were received."""
        self._server.stop()
        exporters.stop_tracing()
        self._done.set()


def main() -> int:
    """Run the worker processes of the EC2 API until SIGTERM."""
    conf.load(sys.argv[1:])
    tracing.check(NAME)
    run.check_key(NAME)
    try:
        tls.context("ec2")  # report unreadable files once, before the workers start
        shared = api_service.listen(CONF.ec2.listen, CONF.ec2.port)
    except exception.InvalidInput as error:
        raise SystemExit(f"{NAME}: {error.message}") from error
    LOG.info("Listening on %s port %s with %s workers", CONF.ec2.listen, CONF.ec2.port, CONF.ec2.workers)
    manager = run.supervisor()
    worker_stats.share(CONF.ec2.workers)
    ending = multiprocessing.RawValue("b", 0)

    def close() -> None:
        ending.value = 1
        shared.close()

    manager.register_hooks(on_terminate=close)
    manager.add(Worker, workers=CONF.ec2.workers, args=(shared, lambda: bool(ending.value)))
    manager.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
