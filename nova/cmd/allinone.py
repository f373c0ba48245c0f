"""nova-allinone: every service in one process, over an in-memory bus and SQLite.

For a first try, the functional tests and demonstrations: no broker, no root, no Keystone.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from nova.service import run

from nova import bus, conf, exception  # isort: skip
from oslo_messaging import opts

from nova.api.guest_metadata.service import MetadataService
from nova.api.http import tls
from nova.api.service import ApiService
from nova.compute.identity import lock_host
from nova.compute.service import hosts_of_driver
from nova.compute.virtual_hosts import compute_of
from nova.conductor.service import ConductorService, check_keys
from nova.conf import CONF
from nova.console.service import KINDS, ConsoleProxy
from nova.db import migrate
from nova.scheduler.service import SchedulerService
from nova.telemetry import exporters, tracing

# What makes a single process of Nova; a configuration file or a caller may override each.
DEFAULTS: dict[tuple[str | None, str], Any] = {
    (None, "transport_url"): "kombu+memory://",
    (None, "compute_driver"): "fake",
    ("network", "driver"): "none",
    ("image", "driver"): "directory",
    ("api", "auth_strategy"): "noauth",
    ("api", "listen"): "127.0.0.1",
}


class AllInOne:
    """The suite in this process: start() brings up everything, ``url`` is its API."""

    def __init__(self) -> None:
        exporters.start_metrics("nova-api")  # of everything, as it is one process
        exporters.start_tracing("nova-allinone")
        migrate.sync(CONF.database.connection)
        check_keys()
        transport = bus.connect(CONF)
        self.conductor = ConductorService(transport)
        self.scheduler = SchedulerService(transport)
        # Where messages are sealed the compute is as on a machine of its own, with the key of its host alone.
        alone = CONF.rpc.key_file and not hosts_of_driver()
        self._on_host = bus.connect(CONF, CONF.host) if alone else transport
        self.compute = compute_of(self._on_host)
        self.api = ApiService(transport, CONF.api.listen, CONF.api.port)
        self.transport = transport
        self._services: list[run.Service] = [self.conductor, self.scheduler, self.compute, self.api]
        if CONF.network.driver == "linuxnet":
            self._services.append(MetadataService(transport, secure=tls.context("metadata")))
        self.consoles = {kind.name: ConsoleProxy(transport, kind) for kind in KINDS if CONF[kind.group].enabled}
        self._services += self.consoles.values()
        bus.prepare()

    @property
    def url(self) -> str:
        return self.api.url

    def start(self) -> None:
        """Returns when a first server can be placed. What does not start raises; the others can be stopped then."""
        for number, service in enumerate(self._services):
            try:
                service.start()
            except Exception:
                del self._services[number:]
                raise
        end = time.monotonic() + 10
        while not len(self.scheduler.fleet) and time.monotonic() < end:
            time.sleep(0.01)  # the news of the first node is on its way

    def stop(self) -> None:
        for service in reversed(self._services):
            service.stop()
        for used in {self.transport, self._on_host}:
            used.cleanup()
        exporters.stop_tracing()
        exporters.stop_metrics()


def set_defaults() -> None:
    """Configure for one process, whatever the options' own defaults are."""
    conf.register()
    for group, options in opts.list_opts():
        if group is None:  # transport_url, before oslo.messaging would register it
            CONF.register_opts(options)
    for (group, name), value in DEFAULTS.items():
        CONF.set_default(name, value, group=group)


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or Ctrl-C; 1 when the database cannot be used, or is not the one of this machine."""
    set_defaults()
    CONF.set_default("state_path", os.path.join(os.environ.get("XDG_STATE_HOME")
                                                or os.path.expanduser("~/.local/state"), "nova"))
    conf.load(sys.argv[1:] if argv is None else argv)
    tracing.check("nova-allinone")
    os.makedirs(CONF.state_path, mode=0o711, exist_ok=True)
    lock_host()
    try:
        suite = AllInOne()
    except (exception.DatabaseUnusable, exception.InvalidInput) as error:
        print(f"nova-allinone: {error}", file=sys.stderr)
        return 1
    try:
        suite.start()
    except exception.HostIdentityMismatch as error:
        suite.stop()
        print(f"nova-allinone: {error}", file=sys.stderr)  # the last line, where it is seen
        return 1
    print(f"Nova is at {suite.url}/v2.1 (no authentication; send X-Auth-Token: admin:admin)", flush=True)
    run.told_to_end().wait()
    suite.stop()
    return 0
