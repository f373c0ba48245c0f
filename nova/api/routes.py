"""Every route of the Compute API, in one table.

A line: method, path, handler, policy (None: the handler asks), then ``since``/``until`` (minor
microversions in which it exists), ``success`` (status, or {since: status}) and ``action`` (the
key of an action's body). Query, body and answer are declared on the handler with ``accepts``.
"""

from __future__ import annotations

from nova.api import versions
from nova.api.compute import keypairs
from nova.api.router import Route

_KEYPAIR = "os_compute_api:os-keypairs:"

ROUTES: tuple[Route, ...] = (
    Route("GET", "/versions/{id}", versions.show),

    # -- key pairs (the handlers ask the policy: the user is in the query) ------------------------
    Route("GET", "/os-keypairs", keypairs.index),
    Route("POST", "/os-keypairs", keypairs.create, success={1: 200, 2: 201}),
    Route("GET", "/os-keypairs/{id}", keypairs.show),
    Route("DELETE", "/os-keypairs/{id}", keypairs.delete, success={1: 202, 2: 204}),
)
