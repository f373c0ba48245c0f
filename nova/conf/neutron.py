"""Options of the network service, read with [network]driver = neutron. [neutron] also has keystoneauth's options."""

from oslo_config import cfg

OPTIONS = {
    "neutron": [
        cfg.IntOpt("http_retries", default=3, min=0, help="Number of times that a GET request to Neutron is sent again "
                   "when no connection could be made. Requests that change something are repeated by the operation "
                   "that sends them. Read by nova-conductor."),
        cfg.IntOpt("extension_sync_interval", default=600, min=0,
                   help="Seconds for which the list of Neutron's extensions is cached; 0: it is requested every time. "
                        "Read by nova-conductor. Lower it while extensions are being enabled."),
        cfg.StrOpt("ovs_bridge", default="br-int", help="Open vSwitch bridge to which guests are connected when "
                   "Neutron names none. Read by nova-conductor and nova-compute."),
    ],
}
