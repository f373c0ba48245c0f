"""The console proxies: browsers reach screens and serial ports of guests through them."""

from __future__ import annotations

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


def novncproxy() -> int:
    """nova-novncproxy: screens by VNC."""
    return _serve(NOVNC)


def spicehtml5proxy() -> int:
    """nova-spicehtml5proxy: screens by SPICE."""
    return _serve(SPICE)


def serialproxy() -> int:
    """nova-serialproxy: serial ports."""
    return _serve(SERIAL)


def _serve(kind: Kind) -> int:
    """Until SIGTERM or SIGINT; open consoles are closed then, and can be opened again by the same URL."""
    nova.conf.load(sys.argv[1:])
    tracing.check(kind.name)
    run.check_key(kind.name)
    stop = run.told_to_end()
    bus.prepare()
    process.settle()
    exporters.start_metrics(kind.name)
    exporters.start_tracing(kind.name)
    try:
        proxy = ConsoleProxy(bus.connect(CONF), kind)
        proxy.start()
    except exception.InvalidInput as error:
        raise SystemExit(f"{kind.name}: {error.message}") from error
    except OSError as error:
        LOG.error("Cannot listen on %s port %d: %s", *kind.address, error)
        return 1
    process.watch()
    stop.wait()
    proxy.stop()
    exporters.stop_tracing()
    LOG.info("%s ends", kind.name)
    return 0
