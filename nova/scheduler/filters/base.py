"""Base classes of filters."""

import numpy as np

from nova.objects.hosts.scheduling import HostState
from nova.scheduler.columns import BoolColumn
from nova.scheduler.plugin import Plugin
from nova.scheduler.request import Request
from nova.scheduler.view import FleetView


class Filter(Plugin):
    """Filters all nodes of a view at once."""

    costly = False  # True if the filter should only check nodes that passed the previous filters
    # True if the result depends on aggregate metadata, so that the claim must check the metadata again.
    by_aggregates = False
    claim_limit = ""  # field of Selection for the limit of the filter, which the claim checks again
    claim_hint = ""  # hint about the hosts of other servers, which the claim checks again
    in_place = False  # True if the filter applies to a new image of a server that stays on its host
    refusal = "refused"  # reason for administrators why a node was rejected

    def mask(self, view: FleetView, request: Request) -> BoolColumn:
        """Return True for every node that the request may use; one element per node of the view."""
        raise NotImplementedError

    def limit(self, view: FleetView, request: Request) -> int:
        """Return the limit of the first node of the view, for a filter with a ``claim_limit``."""
        raise NotImplementedError

    def reason(self, view: FleetView, request: Request) -> str:
        """Return why the first node of the view was rejected, for administrators. Default: ``refusal``."""
        return self.refusal


class HostFilter(Filter):
    """Filters one node at a time."""

    costly = True

    def passes(self, host: HostState, request: Request) -> bool:
        """Return True if the request may use this node."""
        raise NotImplementedError

    def mask(self, view: FleetView, request: Request) -> BoolColumn:
        return np.fromiter(
            (self.passes(view.state(position), request) for position in range(len(view))), np.bool_, len(view))


def everything(view: FleetView) -> BoolColumn:
    """Return the mask that accepts all nodes."""
    return np.ones(len(view), np.bool_)
