"""The command nova-conductor."""

import sys

from nova.service import thread_caches

_DATABASE_TIMEOUT = 30  # seconds to wait for a database that starts at the same time


def main() -> int:
    """Run the workers until SIGTERM. Return 1 if the database is unusable."""
    thread_caches.disable()
    from nova.service import run  # isort: skip  (first: it chooses oslo.service's threading back end)

    from nova import exception
    from nova.conductor.service import ConductorService, check_keys
    from nova.conf import CONF
    from nova.db.maintenance import readiness

    def workers() -> int:
        # Check before the fork, so that an error ends the service instead of each new worker.
        readiness.wait(CONF.database.connection, _DATABASE_TIMEOUT)
        check_keys()
        return run.workers_of(CONF.conductor.workers)

    try:
        return run.run("nova-conductor", ConductorService, workers)
    except exception.DatabaseUnusable as error:
        print(f"nova-conductor: {error}", file=sys.stderr)
        return 1
