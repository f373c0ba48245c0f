"""The bases of filters."""

from __future__ import annotations

import numpy as np

from nova.objects.scheduling import HostState
from nova.scheduler.columns import BoolColumn
from nova.scheduler.plugin import Plugin
from nova.scheduler.request import Request
from nova.scheduler.view import FleetView


class Filter(Plugin):
    """Answers for all nodes of a view at once."""

    # Whether nodes that an earlier filter refused are worth leaving out of the view.
    costly = False
    # Whether the answers depend on the metadata of aggregates, so that a claim has to look at them again.
    by_aggregates = False
    # Whether it has a say about another image of a server that stays where it is.
    in_place = False

    def mask(self, view: FleetView, request: Request) -> BoolColumn:
        """True for every node that the request may go to; one element per node of the view."""
        raise NotImplementedError

    def reason(self, view: FleetView, request: Request) -> str:
        """Why the first node of the view was refused, for administrators."""
        return "refused"


class HostFilter(Filter):
    """Answers for one node at a time."""

    costly = True

    def passes(self, host: HostState, request: Request) -> bool:
        """Whether the request may go to this node."""
        raise NotImplementedError

    def mask(self, view: FleetView, request: Request) -> BoolColumn:
        return np.fromiter(
            (self.passes(view.state(position), request) for position in range(len(view))), np.bool_, len(view))


def everything(view: FleetView) -> BoolColumn:
    """The mask that refuses nobody."""
    return np.ones(len(view), np.bool_)
