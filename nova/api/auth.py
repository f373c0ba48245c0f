"""Authentication of callers by Keystone, or by plain headers for tests."""

import functools
import logging
import re
from collections.abc import Iterable
from typing import Any

from nova import exception, policies
from nova.api import openapi, status_page
from nova.common import plain_ip
from nova.conf import CONF
from nova.context import RequestContext
from nova.http.messages import Environ, Wsgi

LOG = logging.getLogger(__name__)

_PROTECTED = re.compile(r"/(v2(\.1)?|placement)/.+", re.DOTALL)
_REQUEST_ID = re.compile(r"req-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# Roles implied by a stronger role, as in Keystone.
_IMPLIED = {"admin": ("manager", "member", "reader"), "manager": ("member", "reader"), "member": ("reader",)}
NOAUTH_PROJECT = "0" * 31 + "1"


class Unauthorized(exception.NovaException, code=401,
                   template="The request you have made requires authentication."): ...


def is_public(path: str) -> bool:
    """Return True if the path needs no token: versions, the API description, the status page without its data."""
    return path in openapi.PATHS or (path != status_page.DATA and _PROTECTED.fullmatch(path) is None)


def protect(app: Wsgi) -> Wsgi:
    """Return ``app`` behind keystonemiddleware, or ``app`` itself if auth_strategy is noauth."""
    if CONF.api.auth_strategy != "keystone":
        return app
    from keystonemiddleware import auth_token

    guarded = auth_token.AuthProtocol(app, {"oslo_config_config": CONF})

    def choose(environ: Environ, start_response: Any) -> Iterable[bytes]:
        return (app if is_public(environ.get("PATH_INFO", "")) else guarded)(environ, start_response)

    return choose


def context_of(environ: Environ, url_project: str | None) -> RequestContext:
    """Return the context of a request, and make it the current context of this thread."""
    global_id = environ.get("HTTP_X_OPENSTACK_REQUEST_ID", "")
    request_ids = {"global_request_id": global_id} if _REQUEST_ID.fullmatch(global_id) else {"global_request_id": None}
    if CONF.api.auth_strategy == "keystone":
        if environ.get("HTTP_X_IDENTITY_STATUS") != "Confirmed":
            raise Unauthorized()
        ctx = RequestContext.from_environ(environ, **request_ids)
    else:
        ctx = _noauth(environ, url_project, request_ids)
    ctx.is_admin = policies.is_admin(ctx)
    return ctx


def check_listening(address: str) -> None:
    """Raise InvalidInput if auth_strategy is noauth and ``address`` is not a loopback address."""
    if CONF.api.auth_strategy == "noauth" and not plain_ip.address(address).is_loopback:
        raise exception.InvalidInput(reason=f"[api]auth_strategy = noauth accepts any user: cannot listen on "
                                            f"{address}, only on loopback addresses")


@functools.lru_cache(1000)
def _is_loopback(address: str) -> bool:
    return plain_ip.address(address.partition("%")[0]).is_loopback


def _noauth(environ: Environ, url_project: str | None, request_ids: dict[str, Any]) -> RequestContext:
    """Return the context that X-User-Id, X-Project-Id, X-User-Name, X-Project-Name and X-Roles describe. A token
    "user:project" replaces missing headers; the default role is admin. Raises Unauthorized for a client on another
    machine, because a WSGI server other than Nova's may listen on any address."""
    peer = environ.get("REMOTE_ADDR")
    if peer and not _is_loopback(peer):
        LOG.warning("Refused a request from %s: [api]auth_strategy = noauth serves this machine only", peer)
        raise Unauthorized()
    token = environ.get("HTTP_X_AUTH_TOKEN", "")
    user, _, project = token.partition(":")
    roles = [role.strip() for role in environ.get("HTTP_X_ROLES", "admin").split(",") if role.strip()]
    for role in list(roles):
        roles.extend(implied for implied in _IMPLIED.get(role, ()) if implied not in roles)
    user_id = environ.get("HTTP_X_USER_ID") or user or "admin"
    project_id = environ.get("HTTP_X_PROJECT_ID") or project or url_project or NOAUTH_PROJECT
    # Always set a token: back ends treat a caller without a token as a service, not as a user.
    return RequestContext(user_id=user_id, project_id=project_id, roles=roles,
                          user_name=environ.get("HTTP_X_USER_NAME"), project_name=environ.get("HTTP_X_PROJECT_NAME"),
                          auth_token=token or f"{user_id}:{project_id}", **request_ids)
