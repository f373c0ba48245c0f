"""The command nova-allinone: all services in one process, with an in-memory message bus and SQLite.

It is for a first try, functional tests and demonstrations, and needs no broker, no root and no Keystone."""

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from nova.service import run

from nova import bus, conf, exception  # isort: skip
from oslo_messaging import opts

from nova.api.guest_metadata.service import MetadataService
from nova.api.service import ApiService
from nova.compute.identity import lock_host
from nova.compute.service import compute_of, hosts_of_driver
from nova.conductor.service import ConductorService, check_keys
from nova.conf import CONF
from nova.console.service import KINDS, ConsoleProxy
from nova.db.maintenance import migrate
from nova.http import tls
from nova.scheduler.service import SchedulerService
from nova.telemetry import exporters, tracing

# Defaults of options in a single process; the configuration file overrides them.
DEFAULTS: dict[tuple[str | None, str], Any] = {
    (None, "transport_url"): "kombu+memory://", (None, "compute_driver"): "fake", ("network", "driver"): "none",
    ("image", "driver"): "directory", ("api", "auth_strategy"): "noauth", ("api", "listen"): "127.0.0.1"}


class Suite:
    """The services of Nova in this process; ``url`` is the address of the API."""

    def __init__(self) -> None:
        exporters.start_metrics("nova-api")  # the metrics of all services
        exporters.start_tracing("nova-allinone")
        migrate.sync(CONF.database.connection)
        check_keys()
        transport = bus.connect(CONF)
        self.conductor = ConductorService(transport)
        self.scheduler = SchedulerService(transport)
        # With signed messages the compute service uses the key of its host, as on a separate machine.
        separate = CONF.rpc.key_file and not hosts_of_driver()
        self._on_host = bus.connect(CONF, CONF.host) if separate else transport
        self.compute = compute_of(self._on_host)
        self.api = ApiService(transport, CONF.api.listen, CONF.api.port)
        self.transport = transport
        self._services: list[run.Service] = [self.conductor, self.scheduler, self.compute, self.api]
        if CONF.network.driver == "linuxnet":
            self._services.append(MetadataService(transport, secure=tls.context("metadata")))
        if CONF.ec2.enabled:
            from nova.cmd.ec2 import Ec2Service  # The import costs 7 MB of memory.

            self.ec2 = Ec2Service(transport, self.api.url, CONF.ec2.listen, CONF.ec2.port)
            self._services.append(self.ec2)
        self.consoles = {kind.name: ConsoleProxy(transport, kind) for kind in KINDS if CONF[kind.group].enabled}
        self._services += self.consoles.values()
        bus.prepare()

    @property
    def url(self) -> str:
        return self.api.url

    def start(self) -> None:
        """Start all services and return when a server can be scheduled. Raises the error of a service that
        fails to start; stop() then stops the services that have started."""
        for number, service in enumerate(self._services):
            try:
                service.start()
            except Exception:
                del self._services[number:]
                raise
        end = time.monotonic() + 10
        while not len(self.scheduler.fleet) and time.monotonic() < end:
            time.sleep(0.01)  # until the scheduler has received the first node

    def stop(self) -> None:
        for service in reversed(self._services):
            service.stop()
        for transport in {self.transport, self._on_host}:
            transport.cleanup()
        exporters.stop_tracing()
        exporters.stop_metrics()


def set_defaults() -> None:
    """Set the defaults of options for a single process."""
    conf.register()
    for group, options in opts.list_opts():
        if group is None:  # register transport_url before oslo.messaging does
            CONF.register_opts(options)
    for (group, name), value in DEFAULTS.items():
        CONF.set_default(name, value, group=group)


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or Ctrl-C. Return 1 if the database is unusable or belongs to another machine."""
    set_defaults()
    CONF.set_default("state_path", os.path.join(os.environ.get("XDG_STATE_HOME")
                                                or os.path.expanduser("~/.local/state"), "nova"))
    conf.load(sys.argv[1:] if argv is None else argv)
    tracing.check("nova-allinone")
    os.makedirs(CONF.state_path, mode=0o711, exist_ok=True)
    lock_host()
    try:
        suite = Suite()
    except (exception.DatabaseUnusable, exception.InvalidInput) as error:
        print(f"nova-allinone: {error}", file=sys.stderr)
        return 1
    try:
        suite.start()
    except exception.HostIdentityMismatch as error:
        suite.stop()
        print(f"nova-allinone: {error}", file=sys.stderr)  # below the log messages
        return 1
    print(f"Nova is at {suite.url}/v2.1 (no authentication; send X-Auth-Token: admin:admin)", flush=True)
    run.stop_event().wait()
    suite.stop()
    return 0
