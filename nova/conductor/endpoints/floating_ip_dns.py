"""Names of floating addresses."""

from __future__ import annotations

from nova.conductor.endpoints.derived import Endpoint, reads, writes
from nova.db import floating_ip_dns as db


class FloatingIpDns(Endpoint):
    """Implements :class:`nova.rpcapi.floating_ip_dns.FloatingIpDns`."""

    index = reads(db.index)
    entry = reads(db.entry)
    entries_of = reads(db.entries_of)
    put_domain = writes(db.put_domain)
    delete_domain = writes(db.delete_domain)
    put_entry = writes(db.put_entry)
    delete_entry = writes(db.delete_entry)
