"""Options of networks: waiting for interfaces ([DEFAULT]), the embedded networks ([network]), and Neutron ([neutron]).
[neutron] is read if [network]driver is neutron, and also has keystoneauth's options."""

from oslo_config import cfg, types

# PROTOCOL/PORT or icmp, optionally followed by @ADDRESS of the host.
_SERVICE = types.String(regex=r"^((tcp|udp)/[1-9]\d{0,4}|icmp)(@\d+\.\d+\.\d+\.\d+)?$")

OPTIONS = {
    None: [
        cfg.IntOpt("vif_plugging_timeout", default=300, min=0,
                   help="Seconds to wait for the event network-vif-plugged before a guest starts, with a network "
                        "back end that sends it (Neutron). 0: do not wait. Read by nova-conductor."),
        cfg.BoolOpt("vif_plugging_is_fatal", default=True, help="Fail the operation when network-vif-plugged does not "
                    "arrive within vif_plugging_timeout, or when the network back end reports a failure. Otherwise the "
                    "guest starts without the event. Read by nova-conductor."),
        cfg.IntOpt("heal_instance_info_cache_interval", default=600, min=-1,
                   help="Seconds within which conductors compare the interfaces of all servers with the ports of the "
                        "network service (Neutron), whose events may be lost; this takes one or two list requests per "
                        "host. 0 or -1: never. Read by nova-conductor."),
    ],
    "network": [
        cfg.StrOpt("driver", default="linuxnet",
                   help="Network back end: a name of the entry points nova.network.drivers (linuxnet for Nova's own "
                        "networks, neutron or none). Read by nova-api, nova-conductor and nova-compute; all need the "
                        "same value. Do not change it while servers have interfaces."),
        cfg.StrOpt("uplink_interface", help="Network interface of the host through which tenants reach external "
                   "networks. Unset: the interface with the default route. Read by nova-compute and nova-api."),
        cfg.ListOpt("host_services", item_type=_SERVICE, default=[], help="Services of the host that guests may use: "
                    "tcp/PORT, udp/PORT or icmp, at the addresses of uplink_interface, or at one address "
                    "(udp/123@192.0.2.1). DHCP, DNS and metadata of the guests' network, and name servers of a network "
                    "that are addresses of the host, are always allowed. Empty: nothing else. Read by nova-compute."),
        cfg.ListOpt("unreachable", item_type=types.String(), default=[], help="Networks (192.0.2.0/24) behind the "
                    "uplink that guests may not reach. Guests use the address of the host there, so list every network "
                    "that trusts this address, such as those of databases, brokers and other hosts; do not list name "
                    "servers of guests. Empty: guests reach all networks. Read by nova-compute."),
        cfg.BoolOpt("nat", default=True,
                    help="Let guests reach external networks by NAT to the address of the host. Read by nova-compute."),
        cfg.StrOpt("link_range", default="169.254.64.0/18", help="Network from which the links between the host and "
                   "its own networks take addresses, two for each network. The addresses are visible on the host "
                   "only; the host must not use them otherwise. Read by nova-compute."),
        cfg.StrOpt("tunnel_address", help="IP address at which this host receives VXLAN traffic of Nova's own "
                   "networks. Unset: my_ip. Read by nova-compute. Only the other hosts may reach UDP port 4789 of it: "
                   "other senders would gain access to all networks."),
        cfg.StrOpt("dnsmasq", default="dnsmasq",
                   help="Command of the DHCP and DNS server of Nova's own networks (linuxnet). Read by nova-compute."),
        cfg.StrOpt("dhcp_domain", default="novalocal", help="DNS domain of the host names of servers. Empty: host "
                   "names have no domain. Read by nova-compute and nova-metadata."),
        cfg.ListOpt("reserved_names", default=["dhcp", "dns", "gateway", "isatap", "localhost", "metadata", "ntp",
                                               "proxy", "router", "wpad"], help="Host names that servers cannot have "
                    "in the DNS of their network, since clients trust hosts with these names. gateway and metadata "
                    "resolve to services of the network. Read by nova-compute."),
        cfg.IntOpt("dhcp_lease_time", default=86400, min=120,
                   help="Lease time of DHCP in seconds. Read by nova-compute."),
    ],
    "neutron": [
        cfg.IntOpt("http_retries", default=3, min=0, help="Number of times that a GET request to Neutron is sent again "
                   "when no connection could be made. Requests that change something are repeated by the operation "
                   "that sends them. Read by nova-conductor."),
        cfg.IntOpt("extension_sync_interval", default=600, min=0,
                   help="Seconds for which the list of Neutron's extensions is cached; 0: it is requested every time. "
                        "Read by nova-conductor. Lower it while extensions are being enabled."),
        cfg.StrOpt("default_floating_pool", default="nova", help="Name or id of the external network from which POST "
                   "/os-floating-ips allocates addresses without a pool. Read by nova-conductor."),
        cfg.StrOpt("ovs_bridge", default="br-int", help="Open vSwitch bridge to which guests are connected when "
                   "Neutron names none. Read by nova-conductor and nova-compute."),
    ],
}
