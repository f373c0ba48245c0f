"""Networks, floating IP addresses and security groups of Neutron in the terms of Nova's API, with the rights of the
caller. Nova's rules are the ingress rules. A rule without a remote network or group applies to all addresses."""

from nova import exception
from nova.conf import CONF
from nova.context import RequestContext
from nova.network.neutron.api import NeutronApi, Raw
from nova.objects.networks.network import FloatingIp, Network, SecurityGroup, SecurityGroupRule


class NeutronNetworks:
    """The networks of the back end "neutron" (:class:`nova.rpcapi.networks.Networks`), without their subnets."""

    def __init__(self, api: NeutronApi) -> None:
        self._api = api

    def index(self, ctx: RequestContext, project_id: str | None = None) -> list[Network]:
        return [_network(raw) for raw in self._api.usable_networks(ctx, project_id or ctx.project_id or "")]

    def get(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> Network:
        return _network(self._api.network(ctx, uuid, ctx.auth_token))


class NeutronFloatingIps:
    """The floating IP addresses of the back end "neutron" (:class:`nova.rpcapi.networks.FloatingIps`). Pools are
    external networks."""

    def __init__(self, api: NeutronApi) -> None:
        self._api = api

    def pools(self, ctx: RequestContext) -> list[str]:
        return list(self._pools(ctx).values())

    def index(self, ctx: RequestContext, project_id: str | None = None) -> list[FloatingIp]:
        return self._list(ctx, **({"tenant_id": project_id} if project_id else {}))

    def get(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> FloatingIp:
        return self._read(ctx, uuid, id=uuid)

    def allocate(self, ctx: RequestContext, project_id: str, pool: str | None = None) -> FloatingIp:
        wanted = pool or CONF.neutron.default_floating_pool
        pools = self._pools(ctx)
        network = next((uuid for uuid, name in pools.items() if wanted in (uuid, name)), None)
        if network is None:
            raise exception.FloatingIpPoolNotFound()
        try:
            made = self._send(ctx, "POST", body={"floating_network_id": network})
        except exception.NoMoreFixedIps as error:
            raise exception.NoMoreFloatingIps(pool=wanted) from error
        return _floating_ip(made, pools, {})

    def release(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> None:
        self._send(ctx, "DELETE", uuid)

    def give(self, ctx: RequestContext, instance_uuid: str, address: str, fixed_address: str | None = None,
             project_id: str | None = None) -> None:
        floating = self._read(ctx, address, floating_ip_address=address)
        fixed = [(port["id"], item["ip_address"]) for port in self._api.list(
            ctx, "ports", ctx.auth_token, device_id=instance_uuid) for item in port["fixed_ips"]
            if ":" not in item["ip_address"]]
        if not fixed:
            raise exception.InvalidInput("No fixed IPs associated to instance")
        chosen = next((item for item in fixed if fixed_address in (None, item[1])), None)
        if chosen is None:
            raise exception.InvalidInput("Specified fixed address not assigned to instance")
        self._send(ctx, "PUT", floating.uuid, {"port_id": chosen[0], "fixed_ip_address": chosen[1]})

    def take(self, ctx: RequestContext, instance_uuid: str, address: str, project_id: str | None = None) -> None:
        floating = self._read(ctx, address, floating_ip_address=address)
        if floating.instance_uuid != instance_uuid:
            raise exception.FloatingIpNotAssociated(address=address, instance_uuid=instance_uuid)
        self._send(ctx, "PUT", floating.uuid, {"port_id": None})

    def _send(self, ctx: RequestContext, method: str, uuid: str = "", body: Raw | None = None) -> Raw:
        return self._api.as_caller(ctx, method, "floatingip", exception.FloatingIpNotFound(id=uuid), uuid, body)

    def _pools(self, ctx: RequestContext) -> dict[str, str]:
        """Return the names of the external networks by their ids."""
        networks = self._api.list(ctx, "networks", ctx.auth_token, **{"router:external": True})
        return {network["id"]: network.get("name") or network["id"] for network in networks}

    def _read(self, ctx: RequestContext, ident: str, **query: str) -> FloatingIp:
        rows = self._list(ctx, **query)
        if not rows:
            raise exception.FloatingIpNotFound(id=ident)
        return rows[0]

    def _list(self, ctx: RequestContext, **query: str) -> list[FloatingIp]:
        rows = self._api.list(ctx, "floatingips", ctx.auth_token, **query)
        pools = self._pools(ctx) if rows else {}
        ports = self._api.ports_by_id(ctx, [row["port_id"] for row in rows if row.get("port_id")])
        return [_floating_ip(row, pools, ports) for row in rows]


def _floating_ip(row: Raw, pools: dict[str, str], ports: dict[str, Raw]) -> FloatingIp:
    return FloatingIp(
        uuid=row["id"], address=row["floating_ip_address"], project_id=row.get("tenant_id"),
        pool=pools.get(row.get("floating_network_id", "")) or "",
        instance_uuid=ports.get(row["port_id"] or "", {}).get("device_id") or None,
        fixed_address=row.get("fixed_ip_address"))


def _network(raw: Raw) -> Network:
    return Network(uuid=raw["id"], label=raw.get("name") or "", cidr="", gateway="", bridge="", mtu=raw.get("mtu") or 0)


_ALL_PORTS = {"tcp": (1, 65535), "udp": (1, 65535), "icmp": (-1, -1)}
_ANYWHERE = {"IPv4": "0.0.0.0/0", "IPv6": "::/0"}


class NeutronGroups:
    """The security groups of the back end "neutron" (:class:`nova.rpcapi.networks.SecurityGroups`)."""

    def __init__(self, api: NeutronApi) -> None:
        self._api = api

    def index(self, ctx: RequestContext, project_id: str | None = None) -> list[SecurityGroup]:
        query = {"tenant_id": project_id} if project_id else {}
        return [_group(raw) for raw in self._api.list(ctx, "security-groups", ctx.auth_token, **query)]

    def get(self, ctx: RequestContext, group_id: int, project_id: str | None = None, uuid: str = "") -> SecurityGroup:
        return _group(self._send(ctx, "GET", uuid))

    def create(self, ctx: RequestContext, name: str, description: str) -> SecurityGroup:
        return _group(self._send(ctx, "POST", body={"name": name, "description": description}))

    def update(self, ctx: RequestContext, group_id: int, name: str, description: str,
               project_id: str | None = None, uuid: str = "") -> SecurityGroup:
        return _group(self._send(ctx, "PUT", uuid, {"name": name, "description": description}))

    def delete(self, ctx: RequestContext, group_id: int, project_id: str | None = None, uuid: str = "") -> None:
        try:
            self._send(ctx, "DELETE", uuid)
        except exception.Conflict as error:  # the group is in use, or is the default group
            raise exception.InvalidInput(reason=str(error)) from error

    def add_rule(self, ctx: RequestContext, rule: SecurityGroupRule) -> SecurityGroupRule:
        body: Raw = {"security_group_id": rule.parent_uuid, "direction": "ingress", "protocol": rule.protocol,
                     "ethertype": "IPv6" if ":" in (rule.cidr or "") else "IPv4"}
        if (rule.from_port, rule.to_port) != (-1, -1):
            body |= {"port_range_min": rule.from_port, "port_range_max": rule.to_port}
        if rule.group_uuid:
            body["remote_group_id"] = rule.group_uuid
        elif rule.cidr not in _ANYWHERE.values():
            body["remote_ip_prefix"] = rule.cidr
        try:
            return _rule(self._api.as_caller(ctx, "POST", "security_group_rule", exception.SecurityGroupNotFound(
                security_group_id=rule.parent_uuid), body=body))
        except exception.Conflict as error:  # the rule exists
            raise exception.InvalidInput(reason=str(error)) from error

    def delete_rule(self, ctx: RequestContext, rule_id: int, project_id: str | None = None, uuid: str = "") -> None:
        self._api.as_caller(
            ctx, "DELETE", "security_group_rule", exception.SecurityGroupRuleNotFound(rule_id=uuid), uuid)

    def _send(self, ctx: RequestContext, method: str, uuid: str = "", body: Raw | None = None) -> Raw:
        missing = exception.SecurityGroupNotFound(security_group_id=uuid)
        return self._api.as_caller(ctx, method, "security_group", missing, uuid, body)


def _group(raw: Raw) -> SecurityGroup:
    return SecurityGroup(uuid=raw["id"], name=raw["name"], description=raw.get("description") or "",
                         project_id=raw.get("tenant_id") or "",
                         rules=[_rule(rule) for rule in raw.get("security_group_rules") or ()
                                if rule["direction"] == "ingress"])


def _rule(raw: Raw) -> SecurityGroupRule:
    protocol, peer = raw.get("protocol"), raw.get("remote_group_id")
    low, high = raw.get("port_range_min"), raw.get("port_range_max")
    if low is None and high is None:
        low, high = _ALL_PORTS.get(protocol or "", (None, None))
    cidr = raw.get("remote_ip_prefix") or (None if peer else _ANYWHERE.get(raw["ethertype"]))
    return SecurityGroupRule(uuid=raw["id"], parent_group_id=0, parent_uuid=raw["security_group_id"],
                             protocol=protocol, from_port=low, to_port=high, cidr=cidr, group_uuid=peer or "")
