"""The choice of a host, one candidate after the other: what builds, moves and unshelving share."""

from __future__ import annotations

from typing import Protocol

from nova import exception
from nova.objects.action import Failure
from nova.objects.scheduling import RequestSpec, Selection
from nova.operations.contexts import Control


class Placed(Protocol):
    """Of the data: ``candidates``, the host in use first; ``selected``: they are a scheduler's answer."""

    spec: RequestSpec
    candidates: list[Selection]
    selected: bool
    host: str
    plugs: list[str]


class Tried(Placed, Protocol):
    """``tries`` counts hosts tried."""

    tries: int
    max_tries: int


def next_host(ctl: Control, data: Placed, *never: str) -> Selection:
    """The next candidate; asks a scheduler if there is none, leaving out ``never``. Raises NoValidHost."""
    if not data.selected:
        ctl.group_hosts(data.spec)
        # Looked at now: what this waited behind, or had to compensate for, may have left something anywhere.
        known = (*never, *data.spec.ignore_hosts)
        data.spec.ignore_hosts += [host for host in ctl.evicted_hosts() if host not in known]
        data.candidates = ctl.select(data.spec)[0]
        data.selected = True
    if not data.candidates:
        raise exception.NoValidHost(reason="The hosts that were chosen have no room any more.")
    return data.candidates[0]


def rule_out(data: Placed) -> None:
    """The candidate in use, if there is one, is not tried again."""
    if data.candidates:
        data.spec.rule_out(data.candidates.pop(0))
    data.host, data.plugs = "", []


def is_tried_again(data: Tried, failure: Failure) -> bool:
    """Whether to go on with the next candidate, or with what a scheduler says then."""
    # Losing the room to another server is nobody's fault; every node is lost at most once.
    if failure.kind != exception.ClaimLost.__name__:
        data.tries += 1
    if not failure.retry or data.tries >= data.max_tries:
        return False
    # Out of alternates with tries left: ask again, without the nodes that failed.
    if not data.candidates:
        data.selected = False
    return True
