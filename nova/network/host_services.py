"""What guests may ask of their host, and what they do not reach behind it: [network]host_services and unreachable."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from nova import exception
from nova.conf import CONF
from nova.network.dhcp import upstream
from nova.network.records import HostNet


def matches(addresses: Sequence[tuple[str, str]], uplink: str | None, nets: Sequence[HostNet]) -> list[str]:
    """The packets to the host that are let in, as nftables matches. ``addresses``: (device, address) of the host.

    Apart from what the option opens these are questions to name servers of ``nets`` that are the host's own addresses:
    the DNS servers of the networks pass them on. Raises NetworkSetupError for a bad option.
    """
    public = sorted({address for device, address in addresses if device == uplink})
    found = []
    for service in CONF.network.host_services:
        what, _at, where = service.partition("@")
        protocol, _slash, port = what.partition("/")
        targets = [_address(service, where)] if where else public
        if port and int(port) > 65535:
            raise exception.NetworkSetupError(reason=f"[network]host_services: {service} has no such port")
        if targets:
            match = f"{protocol} dport {port}" if port else "ip protocol icmp"
            found.append(f"{_to(targets)} {match}")
    own = {address for _device, address in addresses}
    servers = sorted(own & {server for net in nets for server in upstream(net.dns)})
    if servers:
        found += [f"{_to(servers)} {protocol} dport 53" for protocol in ("udp", "tcp")]
    return found


def unreachable() -> list[str]:
    """The networks behind the uplink that are closed to guests. Raises NetworkSetupError for a bad option."""
    found = []
    for network in CONF.network.unreachable:
        try:
            found.append(ipaddress.IPv4Network(network, strict=False))
        except ValueError as error:
            raise exception.NetworkSetupError(reason=f"[network]unreachable: {error}") from error
    return [str(network) for network in ipaddress.collapse_addresses(found)]


def _address(service: str, value: str) -> str:
    try:
        return str(ipaddress.IPv4Address(value))
    except ValueError as error:
        raise exception.NetworkSetupError(reason=f"[network]host_services: {service} has no IPv4 address") from error


def _to(targets: Sequence[str]) -> str:
    return f"ip daddr {{ {', '.join(targets)} }}"
