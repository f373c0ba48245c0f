"""Shares of Manila, used by conductors. Shares are read with the caller's token; access rules use Nova's credentials. A
host that mounts a share gets an access rule for its address. The rule is locked: users can neither see nor delete the
rule while a server has the share."""

import logging
import time
from collections.abc import Mapping
from typing import Any, Required, TypedDict

import requests

from nova import exception
from nova.conf import CONF
from nova.context import RequestContext
from nova.objects.volumes.share import ADDRESS, NFS, Share
from nova.service_clients import ServiceClient, Unreachable, decode_response, error_message

LOG = logging.getLogger(__name__)

GROUP = "manila"
_ACCESS_TYPES = {NFS: "ip"}
_AVAILABLE = "available"
# States of an access rule.
_ACTIVE, _ERROR = "active", "error"
_LEAVING = ("queued_to_deny", "denying")
_POLL_INTERVAL = 0.5  # interval in seconds of polls of a rule that is being applied


class _Share(TypedDict, total=False):
    id: Required[str]
    status: Required[str]
    share_proto: Required[str]
    project_id: str | None
    name: str | None


class _Location(TypedDict, total=False):
    path: Required[str]
    preferred: bool | None


class _Rule(TypedDict, total=False):
    id: Required[str]
    access_type: Required[str]
    access_to: str | None
    state: Required[str]


class ManilaShares:
    """The share service "manila" (:class:`nova.share.base.ShareService`)."""

    def __init__(self, db: Any) -> None:
        """Ignore the database: all state is in Manila and in the rows of servers."""
        self._manila = ServiceClient(GROUP, {"service_type": "shared-file-system"})

    def get(self, ctx: RequestContext, project_id: str, share_id: str, host: str) -> Share:
        share = self._request(ctx, "GET", f"/shares/{share_id}", _Share, "share", share_id, ctx.auth_token)
        if share["id"] != share_id:
            raise exception.ShareNotFound(share_id=share_id)  # an alias of the id would allow attaching a share twice
        if share.get("project_id") != project_id:
            # All projects can read a public share, but only its own project may change its access rules. Nova's own
            # credentials, which create the rule, are not restricted.
            raise exception.ShareNotFound(share_id=share_id)
        protocol = str(share["share_proto"]).upper()
        if protocol not in _ACCESS_TYPES:
            raise exception.ShareProtocolUnsupported(share_id=share_id, protocol=protocol)
        if share["status"] != _AVAILABLE:
            raise exception.ShareStatusIncorrect(share_id=share_id, status=share["status"], expected=_AVAILABLE)
        locations = self._request(ctx, "GET", f"/shares/{share_id}/export_locations", list[_Location],
                                  "export_locations", share_id, ctx.auth_token)
        location = next((location for location in locations if location.get("preferred")),
                        locations[0] if locations else None)
        if location is None:
            raise exception.Conflict(f"Share {share_id} has no export location in Manila.")
        return Share(uuid=share_id, project_id=project_id, name=share.get("name") or "",
                     protocol=protocol, export_location=location["path"])

    def allow(self, ctx: RequestContext, share_id: str, host: str, connector: Mapping[str, Any],
              instance_uuid: str) -> None:
        address = str(connector.get(ADDRESS) or "")
        if not address:
            raise exception.ShareAccessGrantError(
                share_id=share_id, reason="the host of the server has not reported its address for mounts")
        until = time.monotonic() + CONF.manila.share_apply_policy_timeout
        try:
            while not (rules := self._rules(ctx, share_id, address)) or rules[0]["state"] != _ACTIVE:
                if not rules:
                    self._request(ctx, "POST", f"/shares/{share_id}/action", share_id=share_id, json={"allow_access": {
                        "access_type": _ACCESS_TYPES[NFS], "access_to": address, "access_level": "rw",
                        "lock_visibility": True, "lock_deletion": True,
                        "lock_reason": f"Lock by nova for instance {instance_uuid}"}})
                elif rules[0]["state"] == _ERROR:
                    raise exception.ShareAccessGrantError(share_id=share_id, reason="its access rule is in state error")
                if time.monotonic() > until:
                    raise exception.ShareAccessGrantError(
                        share_id=share_id, reason="Manila did not apply the access rule within "
                                                  f"{CONF.manila.share_apply_policy_timeout} seconds")
                time.sleep(_POLL_INTERVAL)
        except (exception.ShareNotFound, exception.Forbidden, exception.Invalid) as error:
            raise exception.ShareAccessGrantError(share_id=share_id, reason=str(error)) from error

    def deny(self, ctx: RequestContext, share_id: str, host: str, connector: Mapping[str, Any]) -> None:
        try:
            for rule in self._rules(ctx, share_id, str(connector.get(ADDRESS) or "")):
                if rule["state"] not in _LEAVING:
                    self._request(ctx, "POST", f"/shares/{share_id}/action", share_id=share_id, json={
                        "deny_access": {"access_id": rule["id"], "unrestrict": True}})
        except exception.ShareNotFound:
            LOG.info("Share %s does not exist any more: no access of host %s to revoke", share_id, host)
        except (exception.Forbidden, exception.Invalid) as error:
            raise exception.ShareAccessRemovalError(share_id=share_id, reason=str(error)) from error

    def _rules(self, ctx: RequestContext, share_id: str, address: str) -> list[_Rule]:
        if not address:
            return []
        rules: list[_Rule] = self._request(ctx, "GET", "/share-access-rules", list[_Rule], "access_list", share_id,
                                           params={"share_id": share_id})
        return [rule for rule in rules
                if rule["access_type"] == _ACCESS_TYPES[NFS] and rule.get("access_to") == address]

    def _request(self, ctx: RequestContext, method: str, path: str, shape: Any = None, key: str = "",
                 share_id: str = "", token: str | None = None, **more: Any) -> Any:
        """Send a request and return the value under ``key`` of the response, checked against ``shape``. Without
        ``shape`` the response is ignored."""
        try:
            response = self._manila.request(ctx, method, path, token, {
                "X-OpenStack-Manila-API-Version": str(CONF.manila.api_version)}, **more)
            _check(response, share_id)
            return decode_response(response, shape, key) if shape is not None else None
        except Unreachable as error:
            raise exception.ShareServiceUnavailable(reason=str(error)) from error


def _check(response: requests.Response, share_id: str) -> None:
    """Raise the exception for an error response: ShareNotFound, Forbidden, Invalid, ShareServiceUnavailable."""
    status = response.status_code
    if status < 300:
        return
    if status == 404:
        raise exception.ShareNotFound(share_id=share_id)
    if status in (401, 403):
        raise exception.Forbidden(error_message(response, "share"))
    if status < 500 and status not in (408, 429):
        raise exception.Invalid(error_message(response, "share"))
    raise exception.ShareServiceUnavailable(reason=f"the service responded with status {status}")
