"""[neutron]: the network service, for [network]driver neutron (a keystoneauth group, read by conductors)."""

from oslo_config import cfg

OPTIONS = {
    "neutron": [
        cfg.IntOpt("http_retries", default=3, min=0,
                   help="How often a look that could not be sent is repeated. What changes something is repeated by "
                        "the operation that wants it."),
        cfg.IntOpt("extension_sync_interval", default=600, min=0,
                   help="Seconds for which the list of Neutron's extensions is cached; 0: it is requested every time. "
                        "Read by nova-conductor. Lower it while extensions are being enabled."),
        cfg.StrOpt("ovs_bridge", default="br-int",
                   help="The bridge of Open vSwitch that guests are plugged into, where the service does not say. Also "
                        "read by nova-compute."),
    ],
}
