"""The command nova-scheduler."""

import sys

from nova.service import thread_caches


def main() -> int:
    """Run the workers until SIGTERM. Return 1 if a configured filter or weigher does not exist."""
    thread_caches.disable()
    from nova.service import run  # isort: skip  (first: it chooses oslo.service's threading back end)

    from nova.conf import CONF
    from nova.scheduler.manager import load_filters, load_weighers
    from nova.scheduler.plugin import PluginError
    from nova.scheduler.service import SchedulerService

    def workers() -> int:
        load_filters()  # check before the fork, so that a wrong name ends the service instead of each new worker
        load_weighers()
        return run.workers_of(CONF.scheduler.workers)

    try:
        return run.run("nova-scheduler", SchedulerService, workers)
    except PluginError as error:
        print(f"nova-scheduler: {error}", file=sys.stderr)
        return 1
