"""[network]: the embedded networks."""

from oslo_config import cfg

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
