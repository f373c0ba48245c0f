"""Every route of the Compute API, in one table.

A line: method, path, handler, policy (None: the handler asks), then ``since``/``until`` (minor
microversions in which it exists), ``success`` (status, or {since: status}) and ``action`` (the
key of an action's body). Query, body and answer are declared on the handler with ``accepts``.
"""

from __future__ import annotations

from nova.api import versions
from nova.api.compute import (
    console_output,
    extensions,
    ips,
    keypairs,
    removed,
    server_actions,
    server_metadata,
    server_tags,
    servers,
    servers_create,
    servers_list,
)
from nova.api.router import Route

_SERVER = "/servers/{server_id}"
_ACTION = "/servers/{server_id}/action"

ROUTES: tuple[Route, ...] = (
    Route("GET", "/versions/{id}", versions.show),
    Route("GET", "/extensions", extensions.index, "os_compute_api:extensions"),
    Route("GET", "/extensions/{id}", extensions.show, "os_compute_api:extensions"),

    # -- servers (the handlers ask the policy: what is theirs is known only with the server) ------
    Route("GET", "/servers", servers_list.index),
    Route("GET", "/servers/detail", servers_list.detail),
    Route("POST", "/servers", servers_create.create, success=202),
    Route("GET", _SERVER, servers.show),
    Route("PUT", _SERVER, servers.update),
    Route("DELETE", _SERVER, servers.delete, success=204),
    Route("GET", f"{_SERVER}/metadata", server_metadata.index),
    Route("POST", f"{_SERVER}/metadata", server_metadata.create),
    Route("PUT", f"{_SERVER}/metadata", server_metadata.update_all),
    Route("GET", f"{_SERVER}/metadata/{{key}}", server_metadata.show),
    Route("PUT", f"{_SERVER}/metadata/{{key}}", server_metadata.update),
    Route("DELETE", f"{_SERVER}/metadata/{{key}}", server_metadata.delete, success=204),
    Route("GET", f"{_SERVER}/tags", server_tags.index, since=26),
    Route("PUT", f"{_SERVER}/tags", server_tags.update_all, since=26),
    Route("DELETE", f"{_SERVER}/tags", server_tags.delete_all, since=26, success=204),
    Route("GET", f"{_SERVER}/tags/{{tag}}", server_tags.show, since=26, success=204),
    Route("PUT", f"{_SERVER}/tags/{{tag}}", server_tags.update, since=26),
    Route("DELETE", f"{_SERVER}/tags/{{tag}}", server_tags.delete, since=26, success=204),
    Route("GET", f"{_SERVER}/ips", ips.index),
    Route("GET", f"{_SERVER}/ips/{{label}}", ips.show),

    # -- actions on a server ----------------------------------------------------------------------
    Route("POST", _ACTION, server_actions.start, success=202, action="os-start"),
    Route("POST", _ACTION, server_actions.stop, success=202, action="os-stop"),
    Route("POST", _ACTION, server_actions.reboot, success=202, action="reboot"),
    Route("POST", _ACTION, server_actions.pause, success=202, action="pause"),
    Route("POST", _ACTION, server_actions.unpause, success=202, action="unpause"),
    Route("POST", _ACTION, server_actions.suspend, success=202, action="suspend"),
    Route("POST", _ACTION, server_actions.resume, success=202, action="resume"),
    Route("POST", _ACTION, server_actions.lock, success=202, action="lock"),
    Route("POST", _ACTION, server_actions.unlock, success=202, action="unlock"),
    Route("POST", _ACTION, server_actions.reset_state, success=202, action="os-resetState"),
    Route("POST", _ACTION, server_actions.force_delete, success=202, action="forceDelete"),
    Route("POST", _ACTION, server_actions.add_security_group, success=202, action="addSecurityGroup"),
    Route("POST", _ACTION, server_actions.remove_security_group, success=202, action="removeSecurityGroup"),
    Route("POST", _ACTION, console_output.get, action="os-getConsoleOutput"),
    Route("POST", _ACTION, removed.gone, action="resetNetwork"),

    # -- key pairs (the handlers ask the policy: the user is in the query) ------------------------
    Route("GET", "/os-keypairs", keypairs.index),
    Route("POST", "/os-keypairs", keypairs.create, success={1: 200, 2: 201}),
    Route("GET", "/os-keypairs/{id}", keypairs.show),
    Route("DELETE", "/os-keypairs/{id}", keypairs.delete, success={1: 202, 2: 204}),

    # -- gone -------------------------------------------------------------------------------------
    *removed.routes(),
)
