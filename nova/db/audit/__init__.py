"""Consistency checks of the rows for claims, quotas, addresses, actions, volumes and shares.

The package serves ``nova-manage audit`` and the tests that inject faults. An invariant is a
:class:`~nova.db.audit.base.Check`, named in ``CHECKS``. A finding that can be repaired automatically has a repair. An
audit can run while the services run. It examines a page of records at a time, in a short transaction without locks.
Since a record can change between two queries, each inconsistent record is examined again while its rows are locked.
Only confirmed findings are reported. A repair uses the values of the locked rows."""

import dataclasses
import functools
from collections.abc import Iterator

import sqlalchemy as sa

from nova.db.audit.accounts import Charges
from nova.db.audit.base import Check, Finding
from nova.db.audit.claims import Claims, Counts, DedicatedResources, Usage
from nova.db.audit.servers import Addresses, Evictions, FloatingAddresses, Members, Operations
from nova.db.audit.volumes import Devices, Shares, Volumes
from nova.db.sql.engine import Database

__all__ = ["CHECKS", "Check", "Finding", "audit"]

# Claims() comes before Usage() and Counts(), which check sums of claims.
CHECKS: tuple[Check, ...] = (Claims(), Usage(), Counts(), DedicatedResources(), Charges(), Addresses(),
                             FloatingAddresses(), Operations(), Members(), Evictions(), Volumes(), Devices(), Shares())


def audit(db: Database, repair: bool = False, page: int | None = None) -> Iterator[Finding]:
    """Return all findings; with ``repair``, correct those that can be repaired automatically. Examines ``page`` records
    at a time (default: the page size of each check). No transaction is open while the caller handles a finding."""
    for check in CHECKS:
        after, limit = "", page or check.page_size
        while True:
            keys, suspects = db.snapshot(functools.partial(_examine_page, check=check, after=after, limit=limit))
            for key in suspects:
                yield from db.write(functools.partial(_reexamine, check=check, key=key, repair=repair))
            if len(keys) < limit:
                break
            after = keys[-1]


def _examine_page(connection: sa.Connection, check: Check, after: str, limit: int) -> tuple[list[str], list[str]]:
    """Return the keys of the page of records after the key ``after``, and the keys of the inconsistent ones."""
    keys = check.page(connection, after, limit)
    wrong = {finding.key for finding in check.examine(connection, keys)} if keys else set()
    return keys, [key for key in keys if key in wrong]


def _reexamine(connection: sa.Connection, check: Check, key: str, repair: bool) -> list[Finding]:
    """Examine one record again while its rows are locked, and return its findings."""
    check.lock(connection, key)
    findings = list(check.examine(connection, [key]))
    if not repair:
        return findings
    for finding in findings:
        if finding.repair is not None:
            finding.repair(connection)
    return [dataclasses.replace(finding, repaired=finding.repair is not None) for finding in findings]
