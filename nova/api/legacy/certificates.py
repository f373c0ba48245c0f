"""os-certificates: certificates of users, signed by a root certificate of their project (2.1 to 2.35)."""

from nova import exception
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation.fields import Object, Out, View, single
from nova.api.validation.types import ANY_QUERY, STRING, STRING_OR_NULL
from nova.objects.accounts.certificate import Certificate

CERTIFICATE = View([Out("private_key", STRING_OR_NULL), Out("data", STRING)])


@accepts(body=Object({}, null=True), answer=single("certificate", CERTIFICATE))
def create(req: Request) -> Certificate:
    """Create a certificate of the caller. Only this response contains its private key."""
    return req.clients.certificates.create(req.ctx, req.ctx.project_id or "", req.ctx.user_id or "")


@accepts(query=ANY_QUERY, answer=single("certificate", CERTIFICATE))
def show(req: Request) -> Certificate:
    """Show the root certificate of the caller's project. Other certificates are not stored."""
    if req.params["id"] != "root":
        raise exception.NotFound("Only the root certificate can be shown: os-certificates/root.")
    return req.clients.certificates.root(req.ctx, req.ctx.project_id or "")
