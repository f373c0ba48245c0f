"""Configuration options of all Nova services and commands. Each module of the package defines ``OPTIONS``, a mapping of
group name to options. ``CONF`` is the global object of oslo.config; oslo.messaging registers its options on this object
only."""

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

MODULES = ("base", "api", "compute", "conductor", "hypervisors", "network", "scheduler", "storage", "console")


def groups() -> list[tuple[str | None, list[cfg.Opt]]]:
    """Return all (group, options) of Nova itself; the group ``None`` is [DEFAULT]."""
    by_group: dict[str | None, list[cfg.Opt]] = {}
    for name in MODULES:
        module = importlib.import_module(f"nova.conf.{name}")
        for group, options in module.OPTIONS.items():
            by_group.setdefault(group, []).extend(options)
    return list(by_group.items())


def external_services() -> list[tuple[str, list[cfg.Opt]]]:
    """Return keystoneauth's options for each group of an external OpenStack service."""
    from keystoneauth1 import loading

    options = [*loading.get_session_conf_options(), *loading.get_auth_common_conf_options(),
               *loading.get_adapter_conf_options()]
    return [(group, list(options)) for group in ("glance", "cinder", "ec2", "ironic", "manila", "neutron")]


def register(conf: cfg.ConfigOpts = CONF) -> None:
    """Register the options of Nova. Repeated calls have no effect."""
    for group, options in groups():
        conf.register_opts(options, group=group)


def register_external_services(conf: cfg.ConfigOpts = CONF) -> None:
    """Register keystoneauth's options for external services. Repeated calls have no effect. Only processes that send
    requests to external services call it: importing keystoneauth takes 5 MB of memory."""
    for group, options in external_services():
        conf.register_opts(options, group=group)


def load(argv: Sequence[str], conf: cfg.ConfigOpts = CONF, default_files: Sequence[str] | None = None,
         command: bool = False) -> None:
    """Read the command line and the configuration files, and set up logging. ``default_files``: files to read if the
    command line names none; None for those in the environment variable NOVA_CONFIG (separated by colons) or, if it is
    unset, nova.conf in ~/.nova or /etc/nova. ``command``: log to standard error, and warnings only unless debug is set.
    Raises SystemExit with a message if a file cannot be read."""
    register(conf)
    # oslo.config refuses to register command line options after parsing, so forget an earlier parse.
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
    """Return the files to read when the command line names none, or None to let oslo.config find them."""
    if named is not None:
        return list(named)
    return [file for file in os.environ.get("NOVA_CONFIG", "").split(os.pathsep) if file] or None


def set_library_defaults() -> None:
    """Set Nova's defaults for options of libraries. Also an entry point of oslo-config-generator."""
    log.set_defaults(default_log_levels=[
        "amqp=WARN", "amqplib=WARN", "kombu=WARN", "sqlalchemy=WARN", "oslo.messaging=INFO", "oslo_messaging=INFO",
        "oslo_db=WARN", "oslo_db.sqlalchemy.exc_filters=ERROR", "stevedore=WARN", "urllib3=WARN",
        "keystonemiddleware=WARN", "alembic=WARN", "oslo_policy=WARN", "cotyledon=WARN", "keystoneauth=WARN",
        "barbicanclient=WARN"])


def list_opts() -> list[tuple[str | None, list[cfg.Opt]]]:
    """Return all options for oslo-config-generator, including password authentication at external services.
    keystoneauth itself registers the options of an auth_type when the type is used."""
    from keystoneauth1 import loading

    password = loading.get_auth_plugin_conf_options("password")
    return [*groups(), *((group, [*options, *password]) for group, options in external_services())]
