"""Options of the bare metal driver (``compute_driver = ironic``). keystoneauth's options of the group name the service
and the credentials."""

from oslo_config import cfg

OPTIONS = {
    "ironic": [
        cfg.ListOpt("peer_list", default=[], help="Names of the hosts whose nova-computes may share the nodes of "
                    "Ironic. Read by nova-conductor. Empty: all hosts with compute_driver = ironic share them, which "
                    "is only possible while hosts have no keys of their own ([rpc]key_file); a host with a key that is "
                    "not listed manages no nodes."),
        cfg.StrOpt("conductor_group", help="Conductor group of Ironic whose nodes this host manages, together with "
                   "the hosts of the same value. Unset: the nodes of all groups. Read by nova-compute. Set it to "
                   "manage parts of a large Ironic by different hosts."),
        cfg.StrOpt("shard", help="Shard of Ironic whose nodes this host manages, together with the hosts of the same "
                   "value. Unset: the nodes of all shards. Read by nova-compute. Needs API version 1.82 of Ironic."),
        cfg.FloatOpt("api_retry_interval", default=2, min=0.05, help="Seconds between two requests for the state of a "
                     "node that is being deployed, cleaned or switched, and between two attempts while a node is "
                     "locked. Read by nova-compute."),
        cfg.IntOpt("serial_console_state_timeout", default=10, min=1, help="Seconds that Ironic gets to start the "
                   "serial console of a node. Read by nova-compute."),
    ],
}
