"""nova-metadata: the metadata service of this host."""

from __future__ import annotations

import logging
import sys

from nova.service import run  # isort: skip  (chooses oslo.service's threading back end)

import nova.conf
from nova import bus
from nova.api.guest_metadata.service import MetadataService
from nova.conf import CONF
from nova.telemetry import exporters, tracing

LOG = logging.getLogger(__name__)


def main() -> int:
    """Serve until SIGTERM or SIGINT."""
    nova.conf.load(sys.argv[1:])
    tracing.check("nova-metadata")
    run.check_key("nova-metadata")
    stop = run.told_to_end()
    exporters.start_metrics("nova-metadata")
    exporters.start_tracing("nova-metadata")
    service = MetadataService(bus.connect(CONF))
    bus.prepare()
    try:
        service.start()
    except OSError as error:
        LOG.error("Cannot listen on %s:%d: %s", CONF.metadata.listen, CONF.metadata.port, error)
        return 1
    stop.wait()
    service.stop()
    exporters.stop_tracing()
    LOG.info("Metadata service stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
