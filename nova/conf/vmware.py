"""Options of the VMware driver (``compute_driver = vmware``), all read by nova-compute."""

from oslo_config import cfg

OPTIONS = {
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
}
