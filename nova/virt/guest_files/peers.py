"""Addresses of peer hosts, as the hosts report them: validated, because a compromised host may report anything.

libvirt runs programs that a URI names ("qemu+ext:///?command=…"), and a comma begins another option of a block device.
"""

import re

from nova import exception
from nova.conf import CONF

_ADDRESS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?|[0-9A-Fa-f:.]{2,45}")


def address(reported: str) -> str:
    """Return the address if it is a host name or an IP address. Raises MigrationError otherwise."""
    if not _ADDRESS.fullmatch(reported):
        raise exception.MigrationError(reason="the other host reported no valid address")
    return reported


def in_url(reported: str) -> str:
    """Return the address for use in a URL, with IPv6 in brackets. Raises MigrationError."""
    return f"[{address(reported)}]" if ":" in reported else address(reported)


def uri(reported: str) -> str:
    """Return the URI of libvirtd at the address, built from the options of this host. Raises MigrationError."""
    host, options = in_url(reported), CONF.libvirt
    if options.live_migration_uri:
        return str(options.live_migration_uri).replace("%s", host)
    scheme = options.live_migration_scheme or ("tls" if options.live_migration_with_native_tls else "tcp")
    return f"qemu+{scheme}://{host}/system"
