"""nova-metadata: the metadata service of this host."""

from __future__ import annotations

import logging
import sys

from nova.cmd import run  # isort: skip  (chooses oslo.service's threading back end)

import nova.conf
from nova import bus, metrics, tracing
from nova.api.metadata.service import MetadataService
from nova.conf import CONF

LOG = logging.getLogger(__name__)


def main() -> int:
    """Serve until SIGTERM or SIGINT."""
    nova.conf.load(sys.argv[1:])
    tracing.check("nova-metadata")
    stop = run.told_to_end()
    metrics.start("nova-metadata")
    tracing.start("nova-metadata")
    service = MetadataService(bus.connect(CONF))
    bus.prepare()
    try:
        service.start()
    except OSError as error:
        LOG.error("Cannot listen on %s:%d: %s", CONF.metadata.listen, CONF.metadata.port, error)
        return 1
    stop.wait()
    service.stop()
    tracing.stop()
    LOG.info("Metadata service stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
