"""The processes of Nova, and what their workers do at present."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from nova import exception
from nova.objects.base import Object

# Bytes of how a machine reaches volumes.
_CONNECTOR = 16 * 1024


class Service(Object, kw_only=True):
    """A running Nova process as os-services shows it; ``up`` is decided by the conductor's clock."""

    id: int = 0
    uuid: str
    host: str
    binary: str
    topic: str = ""
    disabled: bool = False
    disabled_reason: str | None = None
    forced_down: bool = False
    up: bool = False
    last_seen_up: datetime.datetime | None = None
    version: int = 0
    # Of the machine of a nova-compute; None: it has never told.
    identity: str | None = None
    # Which one the database is of; told to a service that registers, else None.
    deployment: str | None = None
    # Grows with every change of what schedulers are told of it.
    generation: int = 0
    availability_zone: str | None = None
    created_at: datetime.datetime | None = None
    updated_at: datetime.datetime | None = None
    # Of each worker process, as the last heartbeat told it; None: it does not tell.
    load: list[WorkerStats] | None = None


class WorkerStats(Object, kw_only=True):
    """What one worker process of a service did since its last heartbeat, and does now."""

    worker: int = 0
    pid: int = 0
    at: datetime.datetime | None = None
    # Requests, messages and steps ended.
    per_second: float = 0.0
    # Under way, and waiting for a thread.
    busy: int = 0
    waiting: int = 0
    # Of one CPU.
    cpu_percent: float = 0.0
    rss_mb: int = 0


# Of all worker processes of a service: every list of services reads them.
Load = Annotated[list[WorkerStats], msgspec.Meta(max_length=1000)]


def check_connector(told: Mapping[str, Any] | None) -> None:
    """Raises InvalidInput for more than lists of services can bear, which read it, too."""
    if told is not None and len(msgspec.json.encode(told)) > _CONNECTOR:
        raise exception.InvalidInput(reason=f"the connector of a host has more than {_CONNECTOR} bytes")
