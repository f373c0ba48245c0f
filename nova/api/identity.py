"""Existence of projects, queried from Keystone with the caller's token."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING
from urllib.parse import quote

from oslo_config import cfg

from nova import exception
from nova.api.request import Request
from nova.conf import CONF

if TYPE_CHECKING:
    from keystoneauth1 import session

LOG = logging.getLogger(__name__)

# Timeout in seconds of a query; without a response the project counts as existing.
_TIMEOUT = 10


class UnknownProject(exception.Invalid, template="Project ID {project_id} is not a valid project."): ...


def check_project(req: Request, project_id: str) -> None:
    """Raise UnknownProject (400) if Keystone confirms that the project does not exist. Other errors of Keystone, and
    callers who may not read projects, do not fail the request."""
    if project_id == req.ctx.project_id or CONF.api.auth_strategy != "keystone" or not req.ctx.auth_token:
        return
    url = _keystone_url()
    if url is None:
        return
    # The import costs 5 MB, which an API without Keystone does not need.
    from keystoneauth1 import exceptions, token_endpoint

    auth = token_endpoint.Token(url, req.ctx.auth_token)
    try:
        answer = _session().get(f"/projects/{quote(project_id, safe='')}", auth=auth, raise_exc=False,
                                connect_retries=0, redirect=False, endpoint_filter={"service_type": "identity"})
    except exceptions.ClientException as error:
        LOG.warning("Cannot query Keystone, not checking that project %s exists: %s", project_id, error)
        return
    if answer.status_code == 404:
        raise UnknownProject(project_id=project_id)
    if answer.status_code not in (200, 403):
        LOG.warning("Keystone responded with %s: not checking that project %s exists", answer.status_code, project_id)


@functools.cache
def _session() -> session.Session:
    from keystoneauth1 import session

    try:
        verify = not CONF.keystone_authtoken.insecure and (CONF.keystone_authtoken.cafile or True)
    except (cfg.NoSuchOptError, cfg.NoSuchGroupError):
        verify = True
    return session.Session(verify=verify, timeout=_TIMEOUT)


def _keystone_url() -> str | None:
    """Return the v3 URL of the Keystone that keystonemiddleware uses, or None if no URL is configured."""
    for name in ("auth_url", "www_authenticate_uri"):
        try:
            url = getattr(CONF.keystone_authtoken, name)
        except (cfg.NoSuchOptError, cfg.NoSuchGroupError):
            continue
        if url:
            url = url.rstrip("/")
            return url if url.endswith("/v3") else f"{url}/v3"
    return None
