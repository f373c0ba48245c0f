"""os-floating-ip-dns: names of floating addresses (2.1 to 2.35)."""

from typing import Any

from nova import exception
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation.fields import Array, Field, Object, Out, Plain, View, enum, string
from nova.api.validation.types import ANY, ANY_QUERY, STRING, STRING_OR_NULL
from nova.common import plain_ip
from nova.objects.networks.floating_ip_dns import Domain, Entry

_OWNER = Plain(type=["string", "null"], minLength=1, maxLength=255)

DOMAIN_BODY = Object({"domain_entry": Field(Object({
    "scope": Field(enum("public", "private"), required=True), "project": _OWNER, "availability_zone": _OWNER,
}), required=True)})
ENTRY_BODY = Object({"dns_entry": Field(Object({
    "ip": Field(string(maxLength=15, format="ipv4"), required=True),
    "dns_type": Field(enum("a", "A"), required=True)}), required=True)})

DOMAIN = View([
    Out("domain", STRING), Out("scope", STRING), Out("project", STRING_OR_NULL, "project_id"),
    Out("availability_zone", STRING_OR_NULL)])
ENTRY = View([
    Out("id", ANY, lambda _entry, _req: None), Out("ip", STRING, "address"), Out("type", STRING),
    Out("domain", STRING), Out("name", STRING)])


@accepts(query=ANY_QUERY, answer=Object({"domain_entries": Array(DOMAIN)}))
def index(req: Request) -> dict[str, Any]:
    """List the domains that the project may have names in."""
    domains = req.clients.floating_ip_dns.index(req.ctx, req.scope)
    return {"domain_entries": [DOMAIN.render(domain, req) for domain in domains]}


@accepts(body=DOMAIN_BODY, answer=Object({"domain_entry": DOMAIN}), errors=(409,))
def put_domain(req: Request) -> dict[str, Any]:
    """Create a domain, or say anew whose it is."""
    given = req.body["domain_entry"]
    wrong = "availability_zone" if given["scope"] == "public" else "project"
    if given.get(wrong):
        raise exception.Invalid(f"You should not pass {wrong} if the scope is {given['scope']}.")
    made = req.clients.floating_ip_dns.put_domain(req.ctx, Domain(
        domain=req.params["domain"], scope=given["scope"], project_id=given.get("project"),
        availability_zone=given.get("availability_zone")))
    return {"domain_entry": DOMAIN.render(made, req)}


@accepts()
def delete_domain(req: Request) -> None:
    """Delete a domain and all names in it."""
    req.clients.floating_ip_dns.delete_domain(req.ctx, req.params["domain"])


def _is_address(name: str) -> bool:
    try:
        plain_ip.address(name)
    except ValueError:
        return False
    return True


@accepts(query=ANY_QUERY, answer=Object({"dns_entry": ENTRY, "dns_entries": Array(ENTRY)}))
def show(req: Request) -> dict[str, Any]:
    """Show a name of a domain, or all names of an address there."""
    domain, name = req.params["domain"], req.params["name"]
    if not _is_address(name):
        return {"dns_entry": ENTRY.render(req.clients.floating_ip_dns.entry(req.ctx, domain, name, req.scope), req)}
    entries = req.clients.floating_ip_dns.entries_of(req.ctx, domain, name, req.scope)
    if not entries:
        raise exception.DnsEntryNotFound(domain=domain, name=name)
    return {"dns_entries": [ENTRY.render(entry, req) for entry in entries]}


@accepts(body=ENTRY_BODY, answer=Object({"dns_entry": ENTRY}))
def put_entry(req: Request) -> dict[str, Any]:
    """Create a name, or have it be that of another address."""
    given = req.body["dns_entry"]
    made = req.clients.floating_ip_dns.put_entry(req.ctx, Entry(
        domain=req.params["domain"], name=req.params["name"], address=given["ip"], type=given["dns_type"]), req.scope)
    return {"dns_entry": ENTRY.render(made, req)}


@accepts()
def delete_entry(req: Request) -> None:
    """Delete a name."""
    req.clients.floating_ip_dns.delete_entry(req.ctx, req.params["domain"], req.params["name"], req.scope)
