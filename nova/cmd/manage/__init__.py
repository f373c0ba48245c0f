"""The command nova-manage, for administration that needs the database or files."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence

from nova import conf, exception
from nova.cmd.manage import audit, certificates, db, hosts, images, networks, services, volumes

LOG = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Return 0 for success, 1 for problems found, 4 for an unusable database, 127 for bad input. Wrong
    usage ends with 2, an unexpected error with 255."""
    parser = argparse.ArgumentParser(prog="nova-manage", description="Manage a Nova deployment.")
    parser.add_argument("--config-file", action="append", metavar="FILE",
                        help="configuration file; may be repeated (default: the files in the environment variable "
                             "NOVA_CONFIG, else /etc/nova/nova.conf)")
    parser.add_argument("--debug", action="store_true", help="Log debug messages.")
    commands = parser.add_subparsers(dest="category", required=True, metavar="COMMAND")
    for module in (db, services, hosts, networks, volumes, images, certificates, audit):
        module.add_commands(commands)
    arguments = parser.parse_args(sys.argv[1:] if argv is None else argv)
    options = [f"--config-file={file}" for file in arguments.config_file or []]
    conf.load([*options, *(["--debug"] if arguments.debug else [])], command=True)
    try:
        return int(arguments.run(arguments) or 0)
    except exception.DatabaseUnusable as error:
        print(f"nova-manage: {error}", file=sys.stderr)
        return 4
    except exception.NovaException as error:
        print(f"nova-manage: {error}", file=sys.stderr)
        return 127 if error.code < 500 else 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception:
        LOG.exception("nova-manage failed with an unexpected error")
        return 255
