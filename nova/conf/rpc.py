"""Options of message signing and limits on the message bus ([rpc]), read by all services."""

from oslo_config import cfg

OPTIONS = {
    "rpc": [
        cfg.StrOpt("rabbit_driver", default="nova", choices=["nova", "oslo"],
                   help="Driver for a transport_url rabbit://. nova: Nova's own, whose deadlines cover publishing and "
                        "which detects a broker that blocks its publishers; also chosen by nova-rabbit://. oslo: the "
                        "driver of oslo.messaging, which compute hosts with broker accounts of their own cannot use. "
                        "Both work together on one broker. Read by all services."),
        cfg.StrOpt("key_file", help="File with the key with which the services of this machine sign and verify "
                   "messages: the master key on control nodes ('nova-manage host make_master_key'), the key of the "
                   "host on compute hosts ('nova-manage host enrol'). Its mode must be 0600, or 0640 with the group of "
                   "the services. Unset: messages are not signed. Read by all services."),
        cfg.BoolOpt("require_seals", default=False,
                    help="Refuse messages without a signature. By default they are accepted, so that any account of "
                         "the broker has full control; messages with a wrong signature are always refused. Read by "
                         "all services. Set it on control nodes and compute hosts as soon as all have keys."),
        cfg.DictOpt("key_generations", default={}, help="Valid key generations of hosts, as HOST:NUMBER,... A host "
                    "that is not listed has generation 1. Keys of other generations are refused. Read by "
                    "nova-conductor, nova-scheduler and nova-manage. After a host was compromised, raise its "
                    "generation, restart the control services and enrol the host again."),
        cfg.IntOpt("seal_age", default=600, min=0,
                   help="Seconds after which a signed message is refused, and the maximum difference between the "
                        "clocks of two machines. 0: messages do not expire. Read by all services."),
        cfg.StrOpt("broker_api", secret=True, help="URL of RabbitMQ's management plugin with the name and password of "
                   "an administrator (https://NAME:PASSWORD@HOST:15671), with which 'nova-manage host' creates the "
                   "broker accounts of hosts. Unset: it writes definitions to import by hand. Read by nova-manage "
                   "only; keep it in a separate file."),
        cfg.IntOpt("max_message_size", default=64, min=1,
                   help="Maximum size of a received message in MiB after decompression. Read by all services."),
        cfg.IntOpt("max_host_message_size", default=2, min=1,
                   help="Maximum size in MiB of a message from a compute host after decompression. It is small because "
                        "a decoded message uses many times its size in memory. Read by nova-conductor and "
                        "nova-scheduler. Raise it for hosts with thousands of devices or guests."),
    ],
}
