"""Service processes of Nova and the load of their workers."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from nova import exception
from nova.objects.base import Object

# Key in the connector of a host that shares bare metal nodes with all hosts that have the same value.
BARE_METAL = "bare_metal"
_CONNECTOR = 16 * 1024  # maximum size in bytes of a host's volume connector


class Service(Object, kw_only=True):
    """A service as shown by os-services. ``up``: calculated by the conductor."""

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
    identity: str | None = None  # identity of the machine of a nova-compute; None: not reported yet
    deployment: str | None = None  # id of the deployment of the database; set in the reply to a registration only
    # Increases with every change of what schedulers receive about the service.
    generation: int = 0
    availability_zone: str | None = None
    created_at: datetime.datetime | None = None
    updated_at: datetime.datetime | None = None
    load: list[WorkerStats] | None = None  # load of each worker process from the last heartbeat; None: not reported


class WorkerStats(Object, kw_only=True):
    """Load of a worker process since its last heartbeat."""

    worker: int = 0
    pid: int = 0
    at: datetime.datetime | None = None
    per_second: float = 0.0  # completed requests, messages and steps
    # Requests, messages and steps: in progress, and waiting for a thread.
    busy: int = 0
    waiting: int = 0
    # Percent of one CPU.
    cpu_percent: float = 0.0
    rss_mb: int = 0


# Load of all worker processes of a service. The limit bounds the cost of listing services.
Load = Annotated[list[WorkerStats], msgspec.Meta(max_length=1000)]


def check_connector(connector: Mapping[str, Any] | None) -> None:
    """Check the size of a host's volume connector, which service lists also read. Raises InvalidInput."""
    if connector is not None and len(msgspec.json.encode(connector)) > _CONNECTOR:
        raise exception.InvalidInput(reason=f"the connector of a host has more than {_CONNECTOR} bytes")
