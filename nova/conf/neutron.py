"""[neutron]: the network service, for [network]driver neutron (a keystoneauth group, read by conductors)."""

from oslo_config import cfg

OPTIONS = {
    "neutron": [
        cfg.IntOpt("http_retries", default=3, min=0,
                   help="How often a look that could not be sent is repeated. What changes something is repeated by "
                        "the operation that wants it."),
        cfg.StrOpt("ovs_bridge", default="br-int",
                   help="The bridge of Open vSwitch that guests are plugged into, where the service does not say. Also "
                        "read by nova-compute."),
    ],
}
