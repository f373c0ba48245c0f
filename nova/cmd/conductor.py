"""nova-conductor."""

from nova.cmd import run


def main() -> int:
    """Run the workers until SIGTERM."""
    from nova.conductor.service import ConductorService
    from nova.conf import CONF

    return run.run("nova-conductor", ConductorService, lambda: run.workers_of(CONF.conductor.workers))
