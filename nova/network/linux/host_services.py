"""Host services that guests may use, and networks that they cannot reach: [network]host_services, unreachable."""

import ipaddress
from collections.abc import Sequence

from nova import exception
from nova.conf import CONF
from nova.network.linux.dhcp import upstream
from nova.network.linux.state_files import HostNet


def matches(addresses: Sequence[tuple[str, str]], uplink: str | None, nets: Sequence[HostNet]) -> list[str]:
    """Return nftables matches of the packets from guests that the host accepts. ``addresses``: (device, address) of the
    host. Besides the configured services the host accepts DNS queries if a name server of ``nets`` has an address of
    the host, to which the DNS servers of the networks forward queries. Raises NetworkSetupError."""
    public = sorted({address for device, address in addresses if device == uplink})
    accepted = []
    for service in CONF.network.host_services:
        protocol_port, _at, address = service.partition("@")
        protocol, _slash, port = protocol_port.partition("/")
        targets = [_address(service, address)] if address else public
        if port and int(port) > 65535:
            raise exception.NetworkSetupError(reason=f"[network]host_services: the port of {service} is above 65535")
        if targets:
            match = f"{protocol} dport {port}" if port else "ip protocol icmp"
            accepted.append(f"{_match(targets)} {match}")
    own = {address for _device, address in addresses}
    servers = sorted(own & {server for net in nets for server in upstream(net.dns)})
    if servers:
        accepted += [f"{_match(servers)} {protocol} dport 53" for protocol in ("udp", "tcp")]
    return accepted


def unreachable() -> list[str]:
    """Return the networks that guests cannot reach. Raises NetworkSetupError for an invalid option."""
    networks = []
    for network in CONF.network.unreachable:
        try:
            networks.append(ipaddress.IPv4Network(network, strict=False))
        except ValueError as error:
            raise exception.NetworkSetupError(reason=f"[network]unreachable: {error}") from error
    return [str(network) for network in ipaddress.collapse_addresses(networks)]


def _address(service: str, value: str) -> str:
    try:
        return str(ipaddress.IPv4Address(value))
    except ValueError as error:
        raise exception.NetworkSetupError(reason=f"[network]host_services: {value} in {service} is not an IPv4 address"
                                            ) from error


def _match(targets: Sequence[str]) -> str:
    return f"ip daddr {{ {', '.join(targets)} }}"
