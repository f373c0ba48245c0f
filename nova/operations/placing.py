"""The choice of a host, one candidate after the other: what builds, moves and unshelving share."""

from __future__ import annotations

from typing import Protocol

import msgspec

from nova import exception
from nova.objects.action import Failure
from nova.objects.scheduling import RequestSpec, Selection
from nova.operations.base import Wait
from nova.operations.contexts import Control

# How often a host is looked at that has yet to remove what is left of the instance, and seconds between two looks.
LOOKS, PAUSE = 30, 1.0


class Placed(Protocol):
    """Of the data: ``candidates``, the host in use first; ``selected``: they are a scheduler's answer; ``looks``: how
    often it has waited for a host to become clean.
    """

    spec: RequestSpec
    candidates: list[Selection]
    selected: bool
    host: str
    plugs: list[str]
    looks: int


class Tried(Placed, Protocol):
    """``tries`` counts hosts tried."""

    tries: int
    max_tries: int


def next_host(ctl: Control, data: Placed, *never: str) -> Selection:
    """The next candidate; asks a scheduler if there is none, leaving out ``never``. Raises NoValidHost.

    A host where something of the instance may be left is no candidate. If there is no other one it is told to remove
    that now, and waited for some time.
    """
    if not data.selected:
        ctl.group_hosts(data.spec)
        # Looked at now: what this waited behind, or had to compensate for, may have left something anywhere.
        left = [host for host in ctl.evicted_hosts() if host not in (*never, *data.spec.ignore_hosts)]
        clean = msgspec.structs.replace(data.spec, ignore_hosts=[*data.spec.ignore_hosts, *left])
        try:
            data.candidates = ctl.select(clean)[0]
        except exception.NoValidHost:
            _wait_for(ctl, data, left)
            raise
        data.selected, data.looks = True, 0
    if not data.candidates:
        raise exception.NoValidHost(reason="The hosts that were chosen have no room any more.")
    return data.candidates[0]


def _wait_for(ctl: Control, data: Placed, left: list[str]) -> None:
    """Raises Wait while one of these hosts may become clean; one that is down does not."""
    waited_for = [host for host in left if ctl.host_up(host)] if data.looks < LOOKS else []
    for host in waited_for:
        ctl.hasten_eviction(host)
    if waited_for:
        data.looks += 1
        raise Wait(seconds=PAUSE)


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
