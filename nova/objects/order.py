"""Orders to run a step on a host, and the reports that come back."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec

from nova.objects.action import Action
from nova.objects.base import Object
from nova.objects.instance import Instance
from nova.objects.network import RuleSet
from nova.objects.volume import VolumeKey


class StepOrder(Object, kw_only=True):
    """"Run this step now": all that the host needs, so that it asks nobody.

    It is current for ``lease`` seconds from ``issued_at`` (the database's clock); one that is older, or was given to
    the process before this one, is confirmed before it begins.
    """

    action: Action
    step: str
    attempt: int
    undo: bool = False
    instance: Instance
    # Filled for steps that plug interfaces: the filter rules of the instance.
    rules: RuleSet = msgspec.field(default_factory=RuleSet)
    # Filled for steps that connect volumes: what the encrypted ones of the instance are decrypted with.
    volume_keys: list[VolumeKey] = []
    issued_at: datetime.datetime | None = None
    lease: float = 0.0

    @property
    def rank(self) -> tuple[int, int]:
        """Of two orders for one instance the newer has the greater rank, in whatever order they arrive."""
        return self.action.id, self.attempt


class StepReport(Object, kw_only=True):
    """A step's end (or, with ``final`` false, the beginning of the next one on the same host).

    ``changes`` are instance columns, ``results`` go into the action's payload for later steps.
    """

    action_uuid: str
    step: str
    attempt: int
    undo: bool = False
    final: bool = True
    changes: dict[str, Any] = {}
    results: dict[str, Any] = {}
    failure: Any = None
    host: str = ""
