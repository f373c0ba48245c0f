"""The version documents of the API, which are served without a token."""

from typing import Any

from nova.api import errors, forwarded, microversion
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation.fields import Query
from nova.conf import CONF

_MEDIA = "application/vnd.openstack.compute+json;version="
_ITEMS: dict[str, dict[str, Any]] = {
    "v2.0": {"id": "v2.0", "status": "DEPRECATED", "version": "", "min_version": "", "updated": "2025-07-04T12:00:00Z"},
    "v2.1": {"id": "v2.1", "status": "CURRENT", "version": microversion.text(microversion.MAX),
             "min_version": microversion.text(microversion.MIN), "updated": "2013-07-23T11:33:21Z"}}
_SEGMENTS = {"v2.0": "v2", "v2.1": "v2.1"}
_IDS = {segment: ident for ident, segment in _SEGMENTS.items()}


def host_url(environ: dict[str, Any]) -> str:
    """Return the beginning of links: [api]compute_link_prefix, or the address that the client used. Raises BadHost."""
    prefix: str | None = CONF.api.compute_link_prefix
    return (prefix or forwarded.base_url(environ)).rstrip("/")


def public(environ: dict[str, Any], path: str, base: str) -> tuple[int, Any]:
    """Return status and body for a path outside of the versioned APIs."""
    segments = path.strip("/").split("/")
    if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
        return 404, errors.body(404, errors.MISSING_RESOURCE)
    if segments == [""]:
        return 200, {"versions": [_item(ident, base) for ident in _ITEMS]}
    if len(segments) == 1 and segments[0] in _IDS:
        return 200, {"version": document(_IDS[segments[0]], base)}
    return 300, {"choices": [
        {"id": ident, "status": item["status"], "media-types": _media(ident),
         "links": [{"rel": "self", "href": f"{base}/{_SEGMENTS[ident]}/{path.strip('/')}"}]}
        for ident, item in _ITEMS.items()]}


@accepts(query=Query(strict=None))
def show(req: Request) -> dict[str, Any]:
    """Show a version of the API."""
    if req.params["id"] not in _ITEMS:
        raise errors.RouteNotFound()
    return {"version": document(req.params["id"], req.host_url)}


def document(ident: str, base: str) -> dict[str, Any]:
    """Return the document of one version."""
    described = {"rel": "describedby", "type": "text/html", "href": "http://docs.openstack.org/"}
    item = _item(ident, base)
    return {**item, "links": [*item["links"], described], "media-types": _media(ident)}


def _media(ident: str) -> list[dict[str, str]]:
    return [{"base": "application/json", "type": _MEDIA + ("2" if ident == "v2.0" else "2.1")}]


def _item(ident: str, base: str) -> dict[str, Any]:
    return {**_ITEMS[ident], "links": [{"rel": "self", "href": f"{base}/{_SEGMENTS[ident]}/"}]}
