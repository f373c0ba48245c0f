"""Orders to run a step on a host, and the host's reports."""

import datetime
from typing import Any

import msgspec

from nova.objects.base import Object
from nova.objects.networks.network import RuleSet
from nova.objects.servers.action import Action
from nova.objects.servers.instance import Instance
from nova.objects.volumes.volume import VolumeKey


class StepOrder(Object, kw_only=True):
    """An order to run a step, with all data that the host needs, so that the host sends no further requests. The order
    is valid for ``lease`` seconds from ``issued_at`` (database clock). A host confirms an older order, or one that was
    sent to a previous process, before it runs the step."""

    action: Action
    step: str
    attempt: int
    undo: bool = False
    instance: Instance
    # Filter rules of the instance; set for steps that plug interfaces.
    rules: RuleSet = msgspec.field(default_factory=RuleSet)
    # Keys of the instance's encrypted volumes; set for steps that connect volumes.
    volume_keys: list[VolumeKey] = []
    issued_at: datetime.datetime | None = None
    lease: float = 0.0

    @property
    def rank(self) -> tuple[int, int]:
        """Return the sort key: of two orders for an instance, the newer one has the greater rank."""
        return self.action.id, self.attempt


class StepReport(Object, kw_only=True):
    """A report of the end of a step or, if not ``final``, of the beginning of the next step on the same host.
    ``changes``: instance columns; ``results``: data fields for later steps."""

    action_uuid: str
    step: str
    attempt: int
    undo: bool = False
    final: bool = True
    changes: dict[str, Any] = {}
    results: dict[str, Any] = {}
    failure: Any = None
    host: str = ""
