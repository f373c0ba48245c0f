"""The choice of a host, one candidate after the other: what builds, moves and unshelving share."""

from __future__ import annotations

import logging
from typing import Protocol

import msgspec

from nova import exception
from nova.objects.action import Failure
from nova.objects.scheduling import RequestSpec, Selection
from nova.operations.base import Wait
from nova.operations.contexts import Control

LOG = logging.getLogger(__name__)

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
            select(ctl, data, clean)
        except exception.NoValidHost:
            _wait_for(ctl, data, left)
            raise
        data.looks = 0
    if not data.candidates:
        raise exception.NoValidHost(reason="The hosts that were chosen have no room any more.")
    return data.candidates[0]


def select(ctl: Control, data: Placed, spec: RequestSpec) -> None:
    """Ask a scheduler for candidates. Raises NoValidHost.

    If the candidates at hand only miss a soft policy of the server group, and there are no others, these are taken.
    """
    group = data.spec.group
    try:
        data.candidates = ctl.select(spec)[0]
    except exception.NoValidHost:
        if group is None or not group.stale or not data.candidates:
            raise
        LOG.info("No other host serves the soft policy of server group %s better than host %s", group.uuid,
                 data.candidates[0].host)
    data.selected = True
    if group is not None:
        group.stale = False


def _wait_for(ctl: Control, data: Placed, left: list[str]) -> None:
    """Raises Wait while one of these hosts may become clean; one that is down does not."""
    waited_for = [host for host in left if ctl.host_up(host)] if data.looks < LOOKS else []
    for host in waited_for:
        ctl.hasten_eviction(host)
    if waited_for:
        data.looks += 1
        raise Wait(seconds=PAUSE)


def rule_out(data: Placed) -> None:
    """Never try the candidate in use again, if there is one.

    A candidate that only missed a soft policy of the server group is kept: the scheduler is asked again, with the
    members where they are now.
    """
    group = data.spec.group
    if group is not None and group.stale:
        group.selections += 1
        data.selected = False
    elif data.candidates:
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
