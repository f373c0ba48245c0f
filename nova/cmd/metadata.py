"""nova-metadata: the metadata service of this host."""

from __future__ import annotations

import logging
import signal
import sys
import threading

import nova.conf
from nova import bus
from nova.api.metadata.service import MetadataService
from nova.conf import CONF

LOG = logging.getLogger(__name__)


def main() -> int:
    """Serve until SIGTERM or SIGINT."""
    nova.conf.load(sys.argv[1:])
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_args: stop.set())
    service = MetadataService(bus.connect(CONF))
    try:
        service.start()
    except OSError as error:
        LOG.error("Cannot listen on %s:%d: %s", CONF.metadata.listen, CONF.metadata.port, error)
        return 1
    stop.wait()
    service.stop()
    LOG.info("Metadata service stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
