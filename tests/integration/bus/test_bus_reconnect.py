"""Clients reconnect at different moments after a restart of the broker."""

from __future__ import annotations

import concurrent.futures
import pathlib
import time

from oslo_config import cfg
from oslo_messaging._metrics.client import oslo_messaging_metrics
from oslo_messaging._tracing.client import oslo_messaging_tracing

from nova import bus, context
from tests.integration.bus.bus_desk import Desk, configure
from tests.integration.rabbit import Rabbit
from tests.integration.wire import Wire

CTX = context.RequestContext(user_id="u", project_id="p", overwrite=False)
CLIENTS = 12


def pause_before_coming_back(rabbit: Rabbit, vhost: str, directory: pathlib.Path) -> float:
    """Return the seconds until a client reconnects after its connection was cut."""
    directory.mkdir()
    wire, conf = Wire(rabbit.port), cfg.ConfigOpts()
    conf(["--config-file", str(configure(directory, vhost.replace(str(rabbit.port), str(wire.port))))])
    conf.register_opts(oslo_messaging_metrics, "oslo_messaging_metrics")
    conf.register_opts(oslo_messaging_tracing, "oslo_messaging_tracing")
    transport = bus.connect(conf)
    try:
        desk = bus.client(transport, Desk)
        desk.shout(CTX, "before")
        wire.cut()
        before, cut = len(wire.came), time.monotonic()
        desk.shout(CTX, "after")
        return wire.came[before] - cut
    finally:
        transport.cleanup()
        wire.close()


def test_clients_reconnect_at_different_moments(rabbitmq: Rabbit, tmp_path: pathlib.Path) -> None:
    vhost = rabbitmq.new_vhost()
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        pauses = list(pool.map(lambda number: pause_before_coming_back(rabbitmq, vhost, tmp_path / str(number)),
                               range(CLIENTS)))
    assert max(pauses) - min(pauses) > 0.4, pauses
