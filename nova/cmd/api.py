"""nova-api: the REST API, several processes on one socket."""

from __future__ import annotations

import logging
import sys
import threading
from typing import Any

from nova.cmd import run  # isort: skip  (chooses oslo.service's threading back end)

import cotyledon

from nova import conf
from nova.api import app, service
from nova.conf import CONF

LOG = logging.getLogger(__name__)


class Worker(cotyledon.Service):
    """One process: a threaded HTTP server. Its connection to the bus is made after the fork."""

    name = "nova-api"

    def __init__(self, worker_id: int, shared: Any) -> None:
        super().__init__(worker_id)  # type: ignore[arg-type]
        self._server = service.Server(shared, app.create_app(), CONF.api.threads)
        self._done = threading.Event()

    def run(self) -> None:
        self._server.prepare()
        threading.Thread(target=self._serve, name="serve", daemon=True).start()
        self._done.wait()

    def _serve(self) -> None:
        try:
            self._server.serve()
        finally:
            self._done.set()

    def terminate(self) -> None:
        """No new connections; what is being answered is answered."""
        self._server.stop()
        self._done.set()


def main(argv: list[str] | None = None) -> int:
    conf.load(sys.argv[1:] if argv is None else argv)
    shared = service.listen(CONF.api.listen, CONF.api.port)
    workers = run.workers_of(CONF.api.workers)
    LOG.info("Listening on %s port %s with %s workers", CONF.api.listen, CONF.api.port, workers)
    manager = cotyledon.ServiceManager(graceful_shutdown_timeout=run.DRAIN)
    manager.add(Worker, workers=workers, args=(shared,))
    manager.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
