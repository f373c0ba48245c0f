"""The transaction of a step, as the resources of the server use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import sqlalchemy as sa

from nova import context
from nova.conductor.core import Core
from nova.objects.servers.instance import Instance
from nova.objects.volumes.volume import VolumeRemoval


class StepTransaction(Protocol):
    """The context of a step: its instance, and the effects of its transaction."""

    core: Core
    ctx: context.RequestContext
    instance: Instance
    effects: list[Callable[[sa.Connection], object]]
    removals: list[VolumeRemoval]  # sent to their hosts after the commit
    filters: set[str]  # changed security groups, published to the hosts whose rules name them as remote groups

    def set(self, **changes: Any) -> None: ...
    def connector(self, host: str) -> dict[str, Any] | None: ...
