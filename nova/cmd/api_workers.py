"""The worker processes of nova-api, which share a socket."""

import logging
import multiprocessing
import threading
from collections.abc import Callable, Sequence
from typing import Any

from nova.service import run  # isort: skip  (chooses oslo.service's threading back end)

import cotyledon

from nova import bus, conf, exception
from nova.api import app, rates, service
from nova.api.clients import Clients
from nova.conf import CONF
from nova.http import tls
from nova.service import liveness
from nova.service.periodic import Periodic
from nova.telemetry import exporters, tracing, worker_stats

LOG = logging.getLogger(__name__)

_LINGER = 1.0  # seconds after SIGTERM in which requests are accepted, and each response closes its connection
SERVICE_VERSION = 1  # the service version in heartbeats, by which services of different releases are distinguished


class Worker(cotyledon.Service):
    """A worker process with a threaded HTTP server. It connects to the message bus after the fork."""

    name = "nova-api"

    def __init__(self, worker_id: int, shared: Any, ending: Callable[[], bool], limits: rates.Rates) -> None:
        super().__init__(worker_id)  # type: ignore[arg-type]
        self._id = worker_id
        clients = Clients(lambda: bus.connect(CONF))
        application = app.create_app(clients=clients, limits=limits)
        self._server = service.serve(shared, worker_stats.counted(application), CONF.api.threads,
                                     linger=_LINGER, last=ending)
        # Registered for nova-manage service list; os-services never lists nova-api.
        own = liveness.Liveness(liveness.heartbeat_client(clients.transport()), CONF.host, self.name, "api",
                                SERVICE_VERSION, worker_id)
        self._beats = Periodic("heartbeat", CONF.report_interval, own.beat)
        self._done = threading.Event()

    def run(self) -> None:
        run.start_worker(self.name, self._id)
        bus.prepare()
        self._server.prepare()
        threading.Thread(target=self._serve, name="serve", daemon=True).start()
        self._beats.start()
        self._done.wait()

    def _serve(self) -> None:
        try:
            self._server.serve()
        finally:
            self._done.set()

    def terminate(self) -> None:
        """Stop accepting requests, and answer the requests that were received."""
        self._beats.cancel()  # do not wait for a heartbeat in progress
        self._server.stop()
        exporters.stop_tracing()
        self._done.set()


def run_workers(argv: Sequence[str]) -> int:
    """Read the configuration and run the workers until SIGTERM. Raises SystemExit for an unusable configuration."""
    conf.load(argv)
    tracing.check(Worker.name)
    run.check_key(Worker.name)
    try:
        limits = rates.Rates()
        tls.context("api")  # report unreadable files once, before the workers start
        shared = service.listen(CONF.api.listen, CONF.api.port)
    except exception.InvalidInput as error:
        raise SystemExit(f"{Worker.name}: {error.message}") from error
    workers = run.workers_of(CONF.api.workers)
    LOG.info("Listening on %s port %s with %s workers", CONF.api.listen, CONF.api.port, workers)
    manager = run.supervisor()
    worker_stats.share(workers)
    ending = multiprocessing.RawValue("b", 0)  # without a lock, which a killed worker would not release

    def close() -> None:
        ending.value = 1  # replaced workers (SIGHUP) must not shut down the shared socket
        shared.close()  # the socket stays open until the last worker closes it

    manager.register_hooks(on_terminate=close)
    manager.add(Worker, workers=workers, args=(shared, lambda: bool(ending.value), limits))
    manager.run()
    return 0
