"""The commands of the console proxies, which connect browsers with consoles of guests."""

import functools
import logging
import sys

from nova.service import run  # isort: skip  (chooses oslo.service's threading back end)

import nova.conf
from nova import bus, exception
from nova.conf import CONF
from nova.console.service import NOVNC, SERIAL, SPICE, ConsoleProxy, Kind
from nova.service import process
from nova.telemetry import exporters, tracing

LOG = logging.getLogger(__name__)


def _serve(kind: Kind) -> int:
    """Run a proxy until SIGTERM or SIGINT, which closes open consoles; clients can reconnect by the same URL."""
    nova.conf.load(sys.argv[1:])
    tracing.check(kind.name)
    run.check_key(kind.name)
    stop = run.stop_event()
    bus.prepare()
    process.tune_runtime()
    exporters.start_metrics(kind.name)
    exporters.start_tracing(kind.name)
    try:
        proxy = ConsoleProxy(bus.connect(CONF), kind)
        proxy.start()
    except exception.InvalidInput as error:
        raise SystemExit(f"{kind.name}: {error.message}") from error
    except OSError as error:
        LOG.error("%s exits: cannot listen on %s port %d: %s", kind.name, *kind.address, error)
        return 1
    process.start_memory_trimming()
    stop.wait()
    proxy.stop()
    exporters.stop_tracing()
    LOG.info("%s stopped", kind.name)
    return 0


novncproxy, spicehtml5proxy, serialproxy = (functools.partial(_serve, kind) for kind in (NOVNC, SPICE, SERIAL))
