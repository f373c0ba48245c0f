"""Embedded shares of a cluster, created as by nova-manage."""

from __future__ import annotations

import contextlib

from nova.db.sql.engine import Database
from nova.db.volumes import shares
from nova.objects.base import new_uuid
from nova.objects.volumes.share import Share
from tests.integration.cluster import Cluster
from tests.integration.processes import eventually

# The project of the clients.
_PROJECT = "p" * 32


def new_share(nova: Cluster) -> str:
    """Create a share of the clients' project and return its id."""
    with contextlib.closing(Database(nova.database_url)) as db:
        share = Share(uuid=new_uuid(), project_id=_PROJECT)
        return db.write(lambda connection: shares.create(connection, share)).uuid


def statuses(nova: Cluster, server: str) -> list[str]:
    """Return the statuses of the server's shares."""
    return [each["status"] for each in nova.api.get(f"/servers/{server}/shares")["shares"]]


def wait_given(nova: Cluster, server: str, seconds: float) -> None:
    """Wait until the stopped server has access to its share."""
    eventually(lambda: statuses(nova, server) == ["inactive"], seconds, f"the share of {server} is attached")
