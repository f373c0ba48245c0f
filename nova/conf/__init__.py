"""The configuration of every Nova process.

Options are grouped by module; each module has ``OPTIONS``: a mapping of group name to options.
``CONF`` is oslo.config's global object (oslo.messaging registers its own options on that one only).
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Sequence

from oslo_config import cfg
from oslo_log import log

from nova import __version__
from nova.conf import log_lines

CONF = cfg.CONF

MODULES = ("base", "api", "compute", "conductor", "database", "image", "libvirt", "network", "neutron", "quota",
           "scheduler", "volume", "cinder", "share", "metadata", "console", "pci", "fake", "metrics", "notifications",
           "tracing", "rpc")


def groups() -> list[tuple[str | None, list[cfg.Opt]]]:
    """Every (group, options) of Nova itself; ``None`` is [DEFAULT]."""
    found: dict[str | None, list[cfg.Opt]] = {}
    for name in MODULES:
        module = importlib.import_module(f"nova.conf.{name}")
        for group, options in module.OPTIONS.items():
            found.setdefault(group, []).extend(options)
    return list(found.items())


def asked_services() -> list[tuple[str, list[cfg.Opt]]]:
    """keystoneauth's options in the groups that tell how another service is reached."""
    from keystoneauth1 import loading

    options = [*loading.get_session_conf_options(), *loading.get_auth_common_conf_options(),
               *loading.get_adapter_conf_options()]
    return [(group, list(options)) for group in ("glance", "cinder", "manila", "neutron")]


def register(conf: cfg.ConfigOpts = CONF) -> None:
    """Make Nova's options known; harmless when repeated."""
    for group, options in groups():
        conf.register_opts(options, group=group)


def register_asked_services(conf: cfg.ConfigOpts = CONF) -> None:
    """For who asks one: keystoneauth takes 5 MB of each process that imports it. Harmless when repeated."""
    for group, options in asked_services():
        conf.register_opts(options, group=group)


def load(argv: Sequence[str], conf: cfg.ConfigOpts = CONF, default_files: Sequence[str] | None = None,
         command: bool = False) -> None:
    """Read the command line and the configuration files, and set up logging.

    ``default_files`` None takes those that the environment names in NOVA_CONFIG (between colons), else what is in the
    usual places (~/.nova, /etc/nova). ``command``: standard output is for results, so logs go to standard error, and
    only warnings unless debug is set. Ends the process, with a line that says why, if a file cannot be read.
    """
    register(conf)
    # Options of the command line are refused once one was read; this one is read anew.
    conf.clear()
    if "debug" not in conf:
        log.register_options(conf)
    if command:
        conf.set_default("use_stderr", True)
    set_library_defaults()
    try:
        conf(list(argv), project="nova", version=__version__, default_config_files=_files(default_files))
    except cfg.Error as error:
        raise SystemExit(f"{os.path.basename(sys.argv[0])}: {error}") from error
    logging.setLogRecordFactory(log_lines.Record)
    log.setup(conf, "nova", __version__)
    if command and not conf.debug:
        logging.getLogger().setLevel(logging.WARNING)


def _files(named: Sequence[str] | None) -> list[str] | None:
    """The files to read when the command line names none; None: oslo.config looks for them."""
    if named is not None:
        return list(named)
    return [file for file in os.environ.get("NOVA_CONFIG", "").split(os.pathsep) if file] or None


def set_library_defaults() -> None:
    """What the libraries' options are by default in Nova (also an entry point of oslo-config-generator)."""
    log.set_defaults(default_log_levels=[
        "amqp=WARN", "amqplib=WARN", "kombu=WARN", "sqlalchemy=WARN", "oslo.messaging=INFO", "oslo_messaging=INFO",
        "oslo_db=WARN", "oslo_db.sqlalchemy.exc_filters=ERROR", "stevedore=WARN", "urllib3=WARN",
        "keystonemiddleware=WARN", "alembic=WARN", "oslo_policy=WARN", "cotyledon=WARN", "keystoneauth=WARN",
        "barbicanclient=WARN"])


def list_opts() -> list[tuple[str | None, list[cfg.Opt]]]:
    """The entry point of oslo-config-generator: every option, and how other services are asked by password.

    keystoneauth registers the options of an auth_type by itself when it is used.
    """
    from keystoneauth1 import loading

    password = loading.get_auth_plugin_conf_options("password")
    return [*groups(), *((group, [*options, *password]) for group, options in asked_services())]
