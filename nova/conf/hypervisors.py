"""Options of the hypervisor drivers User Mode Linux ([uml]), VMware ([vmware]) and bare metal ([ironic]), read by
nova-compute. keystoneauth's options of the group ironic name the service and the credentials."""

from oslo_config import cfg

OPTIONS = {
    "uml": [
        cfg.StrOpt("kernel", default="/usr/bin/linux.uml", help="Path of the User Mode Linux kernel that all guests "
                   "run. Read by nova-compute. Set it where the kernel is not that of Debian's package "
                   "user-mode-linux."),
        cfg.StrOpt("user_ids", default="458752-524287", help="Range of user ids that run guests, as FIRST-LAST. Each "
                   "guest has an id of its own, which is also its group id and needs no account. Read by nova-compute, "
                   "which uses it only as root; otherwise guests run as the user of nova-compute. Change it if other "
                   "programs of the host use these ids, and only while the host has no guests."),
        cfg.StrOpt("memory_directory", default="/dev/shm",  # noqa: S108 - a directory for the kernels' own files
                   help="Directory for the memory of guests, on a file system in memory that permits execution. Read "
                        "by nova-compute. Its size limits the memory that the host offers. The default has half of the "
                        "host's memory on most systems."),
        cfg.StrOpt("kernel_arguments", default="", help="Further arguments of the kernels of guests. Read by "
                   "nova-compute when a guest starts."),
        cfg.IntOpt("wait_soft_reboot_seconds", default=120, min=0, help="Seconds that a guest gets to reboot itself "
                   "for a soft reboot; then a hard reboot follows. Read by nova-compute."),
        cfg.IntOpt("start_timeout", default=60, min=1, help="Seconds within which the kernel of a starting guest must "
                   "respond. Read by nova-compute. Raise it on busy hosts."),
    ],
    "vmware": [
        cfg.HostAddressOpt("host_ip", help="Host name or IP address of the vCenter server. Read by nova-compute, which "
                           "does not start with the driver vmware if it is unset."),
        cfg.PortOpt("host_port", default=443, help="Port of the vCenter server. Read by nova-compute."),
        cfg.StrOpt("host_username", help="User name at the vCenter server. Read by nova-compute. doc/drivers.md lists "
                   "the privileges that the user needs."),
        cfg.StrOpt("host_password", secret=True, help="Password of host_username. Read by nova-compute."),
        cfg.StrOpt("ca_file", help="File with the CA certificates (PEM) that must have signed the certificates of "
                   "vCenter and, for snapshots, of its hosts. Unset: the CA certificates of the system. Read by "
                   "nova-compute, which ignores it with insecure."),
        cfg.BoolOpt("insecure", default=False, help="Do not verify the certificates of vCenter and its hosts. Read by "
                    "nova-compute. Anybody in the network path can then read the password: only for tests."),
        cfg.StrOpt("cluster_name", help="Name of the cluster whose hosts run the servers of this nova-compute. Read by "
                   "nova-compute, which does not start with the driver vmware if it is unset."),
        cfg.StrOpt("datastore_regex", help="Regular expression that the names of usable datastores match from their "
                   "beginning. Unset: all datastores that every usable host of the cluster can access. Read by "
                   "nova-compute."),
        cfg.StrOpt("integration_bridge", help="Name of the network (port group or opaque network) of interfaces whose "
                   "own network does not exist in vCenter, and of interfaces of type ovs. Unset: such interfaces are "
                   "refused. Read by nova-compute."),
        cfg.StrOpt("cache_prefix", help="Prefix of the directory for images on datastores, whose name continues with "
                   "_base. Unset: the name of the host. Read by nova-compute. Computes with the same prefix share "
                   "images."),
        cfg.BoolOpt("use_linked_clone", default=True, help="Create root disks as linked clones of the cached image, "
                    "which takes seconds and little space. Otherwise they are full copies. The image property "
                    "img_linked_clone overrides the option. Read by nova-compute."),
        cfg.IntOpt("connection_pool_size", default=10, min=1, help="Number of idle connections to vCenter that are "
                   "reused. Read by nova-compute. Raise it for hosts with many concurrent requests."),
        cfg.IntOpt("api_retry_count", default=10, min=0, help="Number of repetitions of a query that failed because "
                   "the connection was lost. Requests that change something are not repeated. Read by nova-compute."),
        cfg.FloatOpt("task_poll_interval", default=0.5, min=0.05, help="Seconds between two polls of a task of "
                     "vCenter. Read by nova-compute."),
        cfg.IntOpt("maximum_objects", default=100, min=1, help="Maximum number of objects in one answer of vCenter; "
                   "longer lists are read in parts. Read by nova-compute."),
        cfg.IntOpt("request_timeout", default=60, min=1, help="Seconds after which a request without an answer "
                   "fails. Read by nova-compute."),
        cfg.IntOpt("task_timeout", default=3600, min=1, help="Seconds that a task of vCenter may take. Read by "
                   "nova-compute. Raise it for full copies of large disks on slow storage."),
        cfg.PortOpt("vnc_port", default=5900, help="First VNC port of guests on an ESX host. Read by nova-compute."),
        cfg.PortOpt("vnc_port_total", default=10000, min=1, help="Number of VNC ports from vnc_port on. Read by "
                    "nova-compute. It limits the number of guests with VNC in the cluster."),
        cfg.StrOpt("vnc_keymap", default="en-us", help="Keyboard layout of VNC consoles. Read by nova-compute."),
        cfg.StrOpt("serial_port_service_uri", help="URI of the virtual serial port concentrator (VSPC) to which guests "
                   "send the output of their serial port. Unset: guests have no serial port. Read by nova-compute."),
        cfg.URIOpt("serial_port_proxy_uri", schemes=["telnet", "telnets"], help="URI of the proxy through which guests "
                   "reach serial_port_service_uri. Unset: directly. Read by nova-compute."),
        cfg.StrOpt("serial_log_dir", default="/opt/vmware/vspc", help="Directory in which the virtual serial port "
                   "concentrator stores console logs. Read by nova-compute, which must share the directory with it."),
    ],
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
