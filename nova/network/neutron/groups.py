"""Security groups of Neutron in the terms of Nova's API (os-security-groups), with the rights of the caller.

Nova's rules are the ingress rules. A rule without a remote network or group applies to all addresses."""

from nova import exception
from nova.context import RequestContext
from nova.network.neutron.api import NeutronApi, Raw
from nova.objects.networks.network import SecurityGroup, SecurityGroupRule

_ALL_PORTS = {"tcp": (1, 65535), "udp": (1, 65535), "icmp": (-1, -1)}
_ANYWHERE = {"IPv4": "0.0.0.0/0", "IPv6": "::/0"}


class NeutronGroups:
    """The security groups of the back end "neutron" (:class:`nova.network.base.OutsideGroups`)."""

    def __init__(self, api: NeutronApi) -> None:
        self._api = api

    def index(self, ctx: RequestContext, project_id: str | None) -> list[SecurityGroup]:
        query = {"tenant_id": project_id} if project_id else {}
        return [_group(raw) for raw in self._api.list(ctx, "security-groups", ctx.auth_token, **query)]

    def get(self, ctx: RequestContext, uuid: str) -> SecurityGroup:
        return _group(self._api.group(ctx, "GET", uuid))

    def create(self, ctx: RequestContext, name: str, description: str) -> SecurityGroup:
        return _group(self._api.group(ctx, "POST", body={"name": name, "description": description}))

    def update(self, ctx: RequestContext, uuid: str, name: str, description: str) -> SecurityGroup:
        return _group(self._api.group(ctx, "PUT", uuid, body={"name": name, "description": description}))

    def delete(self, ctx: RequestContext, uuid: str) -> None:
        try:
            self._api.group(ctx, "DELETE", uuid)
        except exception.Conflict as error:  # in use, or the default group
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
            return _rule(self._api.create_rule(ctx, body))
        except exception.Conflict as error:  # the rule exists
            raise exception.InvalidInput(reason=str(error)) from error

    def delete_rule(self, ctx: RequestContext, uuid: str) -> None:
        self._api.delete_rule(ctx, uuid)


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
