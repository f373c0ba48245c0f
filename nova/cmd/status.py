"""The command nova-status, which checks a deployment before an upgrade."""

import argparse
import logging
import sys
from collections.abc import Callable, Sequence

from nova import bus, conf, context, exception
from nova.cmd.manage import common
from nova.conf import CONF
from nova.db.maintenance import migrate, readiness
from nova.rpcapi.hosts import Services

LOG = logging.getLogger(__name__)

OK, WARNING, FAILURE = 0, 1, 2
_NAMES = {OK: "Success", WARNING: "Warning", FAILURE: "Failure"}


def _schema() -> tuple[int, str]:
    try:
        readiness.check(CONF.database.connection)
    except exception.DatabaseUnusable as error:
        return FAILURE, str(error)
    return OK, f"revision {migrate.version(CONF.database.connection)}"


def _services() -> tuple[int, str]:
    try:
        proxy = bus.client(bus.connect(CONF), Services)
        CONF.set_default("rpc_response_timeout", 10)  # oslo.messaging has registered the option now
        services = proxy.index(context.admin())
    except exception.NovaException as error:
        return WARNING, f"no nova-conductor answers: {error}"
    down = [f"{service.binary}@{service.host}" for service in services if not service.up]
    return (WARNING, "down: " + ", ".join(down)) if down else (OK, f"{len(services)} services are up")


def _credentials() -> tuple[int, str]:
    if CONF.image.driver == "glance":
        conf.register_external_services()
        if not CONF.glance.auth_type:
            return FAILURE, "[glance] has no auth_type: nova-compute cannot download images"
    return OK, "configured"


CHECKS: tuple[tuple[str, Callable[[], tuple[int, str]]], ...] = (
    ("Database schema", _schema), ("Service credentials", _credentials), ("Services", _services))


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``nova-status upgrade check``. Return 0 for success, 1 for warnings, 2 for failures, 255 for other errors."""
    parser = argparse.ArgumentParser(prog="nova-status", description="Check a Nova deployment before an upgrade.")
    parser.add_argument("--config-file", action="append", default=[], metavar="FILE",
                        help="configuration file; may be repeated (default: the files in the environment variable "
                             "NOVA_CONFIG, else /etc/nova/nova.conf)")
    group = parser.add_subparsers(required=True, metavar="COMMAND").add_parser("upgrade").add_subparsers(
        required=True, metavar="ACTION")
    group.add_parser("check", help="Check that the deployment is ready for this release.")
    arguments = parser.parse_args(sys.argv[1:] if argv is None else argv)
    conf.load([f"--config-file={file}" for file in arguments.config_file], command=True)
    try:
        results = [(title, *check()) for title, check in CHECKS]
    except Exception:
        LOG.exception("nova-status failed with an unexpected error")
        return 255
    common.show(("Check", "Result", "Details"), ((title, _NAMES[code], detail) for title, code, detail in results))
    return max(code for _title, code, _detail in results)
