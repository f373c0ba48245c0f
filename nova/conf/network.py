"""[network]: the embedded networks."""

from oslo_config import cfg, types

# PROTOCOL/PORT, or icmp, of the host's address on the uplink or of another of its addresses.
_SERVICE = types.String(regex=r"^((tcp|udp)/[1-9]\d{0,4}|icmp)(@\d+\.\d+\.\d+\.\d+)?$")

OPTIONS = {
    None: [
        cfg.IntOpt("vif_plugging_timeout", default=300, min=0,
                   help="Seconds that a guest waits for the network back end to say that its interfaces are plugged, "
                        "where it says so; 0: it does not wait. Read by conductors."),
        cfg.BoolOpt("vif_plugging_is_fatal", default=True,
                    help="Whether a server fails whose interfaces are not plugged in that time, or of which the back "
                         "end says that they cannot be. Read by conductors."),
    ],
    "network": [
        cfg.StrOpt("driver", default="linuxnet",
                   help="What plugs guests on a host: a name of the entry points nova.network.drivers."),
        cfg.StrOpt("uplink_interface", help="The interface of the host that tenants reach the outside by; "
                                            "unset: the one with the default route."),
        cfg.ListOpt("host_services", item_type=_SERVICE, default=[],
                    help="What guests may ask of the host itself: tcp/PORT, udp/PORT or icmp, each of the addresses on "
                         "uplink_interface, or @ADDRESS (udp/123@192.0.2.1). Everything else of the host is closed to "
                         "them, apart from DHCP, DNS and metadata of their network. Name servers of a network that are "
                         "addresses of the host answer."),
        cfg.ListOpt("unreachable", item_type=types.String(), default=[],
                    help="Networks (192.0.2.0/24) behind the uplink that guests do not reach. They come with the "
                         "host's address: whoever trusts that should be listed, as the network of databases, brokers "
                         "and other hosts, but no name server of a network."),
        cfg.BoolOpt("nat", default=True, help="Whether guests reach the outside, behind the host's address."),
        cfg.StrOpt("link_range", default="169.254.64.0/18",
                   help="Addresses for the links between networks and the host, two for each network. Never seen "
                        "outside of the host, but the host must not use them otherwise."),
        cfg.StrOpt("tunnel_address",
                   help="The address of this host that networks in VXLAN are sent to; unset: my_ip. Nobody but the "
                        "other hosts may reach its UDP port 4789: whoever does is in all networks."),
        cfg.StrOpt("dnsmasq", default="dnsmasq", help="The DHCP and DNS server of a network."),
        cfg.StrOpt("dhcp_domain", default="novalocal", help="The domain of host names; empty: none."),
        cfg.ListOpt("reserved_names", default=["dhcp", "dns", "gateway", "isatap", "localhost", "metadata", "ntp",
                                               "proxy", "router", "wpad"],
                    help="Host names that no server gets in the DNS of its network, since clients believe who has "
                         "them. gateway and metadata are the network's own."),
        cfg.IntOpt("dhcp_lease_time", default=86400, min=120, help="Seconds."),
    ],
}
