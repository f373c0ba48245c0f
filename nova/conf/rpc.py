"""[rpc]: who may ask whom over the message bus."""

from oslo_config import cfg

OPTIONS = {
    "rpc": [
        cfg.StrOpt("rabbit_driver", default="nova", choices=["nova", "oslo"],
                   help="Driver for a transport_url rabbit://. nova: Nova's own, whose deadlines cover publishing and "
                        "which detects a broker that blocks its publishers; also chosen by nova-rabbit://. oslo: the "
                        "driver of oslo.messaging, which compute hosts with broker accounts of their own cannot use. "
                        "Both work together on one broker. Read by all services."),
        cfg.StrOpt("key_file",
                   help="The file with the key by which this machine's services seal their messages and know those of "
                        "others: on control nodes the master key ('nova-manage host make_master_key'), on a compute "
                        "host the host's own ('nova-manage host enrol'). Mode 0600 (or 0640 with the group of the "
                        "services). Unset: messages are not sealed."),
        cfg.BoolOpt("require_seals", default=False,
                    help="Whether messages without a seal are refused. Until this is set, whoever has an account of "
                         "the broker is trusted with everything: set it on control nodes and on hosts as soon as all "
                         "have keys. A seal that is wrong is refused in any case."),
        cfg.DictOpt("key_generations", default={},
                    help="HOST:NUMBER,...: the generation of a host's key where it is not 1. A key of any other "
                         "generation is refused: raise it when a host was compromised, restart the control services, "
                         "and enrol the host anew."),
        cfg.IntOpt("seal_age", default=600, min=0,
                   help="Seconds after which a sealed message is refused, and that the clocks of two machines may "
                        "differ; 0: never."),
        cfg.StrOpt("broker_api", secret=True,
                   help="Where 'nova-manage host' makes the accounts of hosts: the address of RabbitMQ's management "
                        "plugin with an administrator's name and password (https://NAME:PASSWORD@HOST:15671). Read by "
                        "nobody else: keep it in a file of its own. Unset: it writes definitions to be imported."),
        cfg.IntOpt("max_message_size", default=64, min=1,
                   help="The longest message that is read, in MiB, once it is decompressed."),
        cfg.IntOpt("max_host_message_size", default=2, min=1,
                   help="The same for what a compute host says: what a small message becomes in memory is many times "
                        "as large. Hosts with thousands of devices or guests may need more."),
    ],
}
