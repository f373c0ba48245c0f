"""os-floating-ips-bulk and os-floating-ip-dns: pools and names of floating addresses (2.1 to 2.35)."""

from typing import Any

from nova import exception
from nova.api.errors import RouteNotFound
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation.fields import Array, Field, Object, Out, Plain, View, enum, listed, single, string
from nova.api.validation.types import ANY, ANY_QUERY, STRING, STRING_OR_NULL, TEXT
from nova.common import plain_ip
from nova.conf import CONF
from nova.objects.networks.network import Domain, Entry, FloatingIp

_RANGE = string(minLength=1, maxLength=64)

CREATE = Object({"floating_ips_bulk_create": Field(Object({"ip_range": Field(_RANGE, required=True), "pool": TEXT,
                                                           "interface": TEXT}), required=True)})
DELETE = Object({"ip_range": Field(_RANGE, required=True)})
_MADE = Object({"floating_ips_bulk_create": Object({"ip_range": STRING, "pool": STRING, "interface": STRING_OR_NULL})})
_MANY = listed("floating_ip_info", View([
    Out("address", STRING), Out("pool", STRING),
    Out("interface", STRING_OR_NULL, lambda _shown, _req: CONF.network.uplink_interface),
    Out("project_id", STRING_OR_NULL), Out("instance_uuid", STRING_OR_NULL),
    Out("fixed_ip", STRING_OR_NULL, "fixed_address")]))


@accepts(query=ANY_QUERY, answer=_MANY)
def index(req: Request) -> list[FloatingIp]:
    """List the floating addresses of all pools."""
    return req.clients.floating_ips.index(req.ctx)


@accepts(query=ANY_QUERY, answer=_MANY)
def show(req: Request) -> list[FloatingIp]:
    """List the floating addresses of the servers on a host."""
    floating_ips = req.clients.floating_ips.on_host(req.ctx, req.params["id"])
    if not floating_ips:
        raise exception.FloatingIpNotFoundForHost(host=req.params["id"])
    return floating_ips


@accepts(body=CREATE, answer=_MADE, errors=(409,))
def create(req: Request) -> dict[str, Any]:
    """Add the addresses of a range to a pool."""
    given = req.body["floating_ips_bulk_create"]
    ours, pool = CONF.network.uplink_interface, given.get("pool", "nova")
    if ours and given.get("interface", ours) != ours:
        raise exception.InvalidInput(reason=f"interface {given['interface']} has no floating IPs, only {ours} "
                                            "([network]uplink_interface)")
    req.clients.floating_ips.create(req.ctx, pool, given["ip_range"])
    return {"floating_ips_bulk_create": {
        "ip_range": given["ip_range"], "pool": pool, "interface": given.get("interface", ours)}}


@accepts(body=DELETE, answer=Object({"floating_ips_bulk_delete": STRING}), errors=(409,))
def delete(req: Request) -> dict[str, Any]:
    """Remove the unallocated addresses of a range from their pools."""
    if req.params["id"] != "delete":  # the only action of this PUT
        raise RouteNotFound()
    req.clients.floating_ips.delete(req.ctx, req.body["ip_range"])
    return {"floating_ips_bulk_delete": req.body["ip_range"]}


# -- names ------------------------------------------------------------------------------------------------
_OWNER = Plain(type=["string", "null"], minLength=1, maxLength=255)

DOMAIN_BODY = Object({"domain_entry": Field(Object({"scope": Field(enum("public", "private"), required=True),
                                                    "project": _OWNER, "availability_zone": _OWNER}), required=True)})
ENTRY_BODY = Object({"dns_entry": Field(Object({"ip": Field(string(maxLength=15, format="ipv4"), required=True),
                                                "dns_type": Field(enum("a", "A"), required=True)}), required=True)})

DOMAIN = View([Out("domain", STRING), Out("scope", STRING), Out("project", STRING_OR_NULL, "project_id"),
               Out("availability_zone", STRING_OR_NULL)])
ENTRY = View([Out("id", ANY, lambda _entry, _req: None), Out("ip", STRING, "address"), Out("type", STRING),
              Out("domain", STRING), Out("name", STRING)])


@accepts(query=ANY_QUERY, answer=listed("domain_entries", DOMAIN))
def domains(req: Request) -> list[Domain]:
    """List the DNS domains in which the project may create names."""
    return req.clients.floating_ip_dns.index(req.ctx, req.scope)


@accepts(body=DOMAIN_BODY, answer=single("domain_entry", DOMAIN), errors=(409,))
def put_domain(req: Request) -> Domain:
    """Create a DNS domain, or change its project or availability zone."""
    given = req.body["domain_entry"]
    wrong = "availability_zone" if given["scope"] == "public" else "project"
    if given.get(wrong):
        raise exception.Invalid(f"You should not pass {wrong} if the scope is {given['scope']}.")
    return req.clients.floating_ip_dns.put_domain(req.ctx, Domain(
        domain=req.params["domain"], scope=given["scope"], project_id=given.get("project"),
        availability_zone=given.get("availability_zone")))


@accepts()
def delete_domain(req: Request) -> None:
    """Delete a DNS domain and all names in it."""
    req.clients.floating_ip_dns.delete_domain(req.ctx, req.params["domain"])


@accepts(query=ANY_QUERY, answer=Object({"dns_entry": ENTRY, "dns_entries": Array(ENTRY)}))
def show_entry(req: Request) -> dict[str, Any]:
    """Show a DNS name of a domain, or all names of an address in the domain."""
    domain, name = req.params["domain"], req.params["name"]
    try:
        plain_ip.address(name)
    except ValueError:
        return {"dns_entry": ENTRY.render(req.clients.floating_ip_dns.entry(req.ctx, domain, name, req.scope), req)}
    entries = req.clients.floating_ip_dns.entries_of(req.ctx, domain, name, req.scope)
    if not entries:
        raise exception.DnsEntryNotFound(domain=domain, name=name)
    return {"dns_entries": [ENTRY.render(entry, req) for entry in entries]}


@accepts(body=ENTRY_BODY, answer=single("dns_entry", ENTRY))
def put_entry(req: Request) -> Entry:
    """Create a DNS name, or assign it to another address."""
    given = req.body["dns_entry"]
    return req.clients.floating_ip_dns.put_entry(req.ctx, Entry(
        domain=req.params["domain"], name=req.params["name"], address=given["ip"], type=given["dns_type"]), req.scope)


@accepts()
def delete_entry(req: Request) -> None:
    """Delete a DNS name."""
    req.clients.floating_ip_dns.delete_entry(req.ctx, req.params["domain"], req.params["name"], req.scope)
