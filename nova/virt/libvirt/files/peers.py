"""Addresses of peer hosts, as the hosts report them: validated, because a compromised host may report anything.

libvirt runs programs that a URI names ("qemu+ext:///?command=…"), and a comma begins another option of a block device.
"""

from __future__ import annotations

import re

from nova import exception
from nova.conf import CONF

_ADDRESS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?|[0-9A-Fa-f:.]{2,45}")


def address(said: str) -> str:
    """Return the address if it is a host name or an IP address. Raises MigrationError otherwise."""
    if not _ADDRESS.fullmatch(said):
        raise exception.MigrationError(reason="the other host names no address at which it is reached")
    return said


def in_url(said: str) -> str:
    """The same as part of a URL. Raises MigrationError."""
    return f"[{address(said)}]" if ":" in said else address(said)


def uri(said: str) -> str:
    """The URI of libvirtd at an address, by the options of this host. Raises MigrationError."""
    host, options = in_url(said), CONF.libvirt
    if options.live_migration_uri:
        return str(options.live_migration_uri).replace("%s", host)
    scheme = options.live_migration_scheme or ("tls" if options.live_migration_with_native_tls else "tcp")
    return f"qemu+{scheme}://{host}/system"
