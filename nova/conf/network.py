"""[network]: the embedded networks."""

from oslo_config import cfg

OPTIONS = {
    "network": [
        cfg.StrOpt("driver", default="linuxnet",
                   help="What plugs guests on a host: a name of the entry points nova.network.drivers."),
        cfg.StrOpt("uplink_interface", help="The interface of the host that tenants reach the outside by; "
                                            "unset: the one with the default route."),
        cfg.BoolOpt("nat", default=True, help="Whether guests reach the outside, behind the host's address."),
        cfg.StrOpt("link_range", default="169.254.64.0/18",
                   help="Addresses for the links between networks and the host, two for each network. Never seen "
                        "outside of the host, but the host must not use them otherwise."),
        cfg.StrOpt("tunnel_address",
                   help="The address of this host that networks in VXLAN are sent to; unset: my_ip. Nobody but the "
                        "other hosts may reach its UDP port 4789: whoever does is in all networks."),
        cfg.StrOpt("dnsmasq", default="dnsmasq", help="The DHCP and DNS server of a network."),
        cfg.StrOpt("dhcp_domain", default="novalocal", help="The domain of host names; empty: none."),
        cfg.IntOpt("dhcp_lease_time", default=86400, min=120, help="Seconds."),
    ],
}
