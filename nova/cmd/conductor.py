"""nova-conductor."""

from __future__ import annotations

import sys

from nova.service import thread_caches

# Seconds that a database which starts together with the conductor has to come up.
_PATIENCE = 30


def main() -> int:
    """Run the workers until SIGTERM; 1 when the database cannot be used."""
    thread_caches.disable()
    from nova.service import run  # isort: skip  (first: it chooses oslo.service's threading back end)

    from nova import exception
    from nova.conductor.service import ConductorService, check_keys
    from nova.conf import CONF
    from nova.db.sql import readiness

    def workers() -> int:
        # Before the fork, so that it ends the service instead of every worker again and again.
        readiness.wait(CONF.database.connection, _PATIENCE)
        check_keys()
        return run.workers_of(CONF.conductor.workers)

    try:
        return run.run("nova-conductor", ConductorService, workers)
    except exception.DatabaseUnusable as error:
        print(f"nova-conductor: {error}", file=sys.stderr)
        return 1
