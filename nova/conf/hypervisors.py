"""Options of the hypervisor drivers libvirt ([libvirt]), User Mode Linux ([uml]), VMware ([vmware]) and bare metal
([ironic], with keystoneauth's options), read by nova-compute."""

from oslo_config import cfg

_LIVE_MIGRATION = [
    cfg.StrOpt("live_migration_inbound_addr",
               help="IP address or host name at which this host receives live migrations. Unset: my_ip. Read by "
                    "nova-compute. Set it to send migrations over a separate network."),
    cfg.StrOpt("live_migration_scheme", help="Transport to the libvirtd of the destination host: tcp, tls or ssh. "
               "Unset: tls if live_migration_with_native_tls is set, otherwise tcp. Read by nova-compute."),
    cfg.StrOpt("live_migration_uri",
               help="libvirt URI of the destination host, in which %s stands for its live_migration_inbound_addr. "
                    "Unset: qemu+SCHEME://%s/system, where SCHEME is live_migration_scheme. Read by nova-compute."),
    cfg.IntOpt("live_migration_completion_timeout", default=800, min=0,
               help="Seconds that a live migration may take for each GiB of memory and copied disks (at least 2 GiB). "
                    "Then live_migration_timeout_action applies. 0: no limit. Read by nova-compute."),
    cfg.StrOpt("live_migration_timeout_action", default="abort", choices=["abort", "force_complete"],
               help="Action on a live migration that takes too long: abort, or force_complete, which switches to "
                    "post-copy or else pauses the guest. Read by nova-compute."),
    cfg.IntOpt("live_migration_downtime", default=500, min=100,
               help="Maximum time in milliseconds for which a guest is paused at the end of a live migration. Read by "
                    "nova-compute. Raise it for guests whose migrations do not complete."),
    cfg.IntOpt("live_migration_downtime_steps", default=10, min=3, help="Number of steps in which the permitted "
               "downtime of a live migration is raised to live_migration_downtime. Read by nova-compute."),
    cfg.IntOpt("live_migration_downtime_delay", default=75, min=3, help="Seconds between two steps of "
               "live_migration_downtime_steps, for each GiB of memory and copied disks. Read by nova-compute."),
    cfg.BoolOpt("live_migration_permit_post_copy", default=False,
                help="Allow post-copy: the guest runs on the destination host before all its memory has arrived. Such "
                     "a migration always completes, but a network failure kills the guest. Read by nova-compute."),
    cfg.BoolOpt("live_migration_permit_auto_converge", default=False, help="Allow QEMU to slow down the CPUs of guests "
                "that change their memory faster than it is copied. Read by nova-compute."),
    cfg.BoolOpt("live_migration_with_native_tls", default=False, help="Encrypt memory and disks of live migrations "
                "with TLS, using the certificates of QEMU. Read by nova-compute."),
    cfg.IntOpt("live_migration_bandwidth", default=0, min=0,
               help="Maximum bandwidth of one live migration in MiB per second. 0: no limit. Read by nova-compute."),
    cfg.IntOpt("live_migration_parallel_connections", default=1, min=1,
               help="Number of connections over which a live migration copies memory. Read by nova-compute. Raise it "
                    "where one connection does not use the whole bandwidth."),
    cfg.FloatOpt("live_migration_monitor_interval", default=5, min=1,
                 help="Seconds between two progress reports of a live migration. Read by nova-compute."),
]

OPTIONS = {
    "libvirt": [
        cfg.StrOpt("virt_type", default="kvm", choices=["kvm", "qemu", "lxc"],
                   help="Virtualization type: kvm (hardware virtualization), qemu (emulated CPU, slow) or lxc "
                        "(containers). Read by nova-compute. Set qemu on machines without hardware virtualization."),
        cfg.StrOpt("connection_uri", default="",
                   help="URI of libvirt. Empty: the local system instance for virt_type. Read by nova-compute."),
        cfg.IntOpt("reconnect_timeout", default=30, min=0, help="Seconds that an operation waits for libvirt to become "
                   "reachable again before it fails. Read by nova-compute."),
        cfg.StrOpt("cpu_mode", choices=["host-model", "host-passthrough", "custom", "none"],
                   help="CPU of guests. host-passthrough needs virt_type kvm, custom needs cpu_models, none leaves the "
                        "choice to the hypervisor. Unset: host-model where the host supports it, otherwise none. Read "
                        "by nova-compute. Set custom for live migration between different CPUs."),
        cfg.ListOpt("cpu_models", default=[], help="CPU models for cpu_mode custom, in order of preference; the first "
                    "model that the host supports is used. Read by nova-compute."),
        cfg.ListOpt("cpu_model_extra_flags", default=[], help="CPU features to add to the CPU of guests (NAME or "
                    "+NAME) or to remove (-NAME). Read by nova-compute."),
        cfg.ListOpt("hw_machine_type", default=[], help="Default machine types, as ARCHITECTURE=TYPE (x86_64=q35). "
                    "Unset: pc on x86_64. The image property hw_machine_type overrides it. Read by nova-compute."),
        cfg.ListOpt("disk_cachemodes", default=[],
                    help="Cache mode of local disks, as file=MODE (file=writeback). Unset: none if the file system of "
                         "instances_path supports direct I/O, otherwise writeback. Read by nova-compute."),
        cfg.StrOpt("hw_disk_discard", choices=["ignore", "unmap"],
                   help="Handling of discard requests of guests for local disks: ignore, or unmap to free the space. "
                        "Unset: the default of QEMU. Read by nova-compute."),
        cfg.IntOpt("wait_soft_reboot_seconds", default=120, min=0, help="Seconds that a guest gets to shut down for a "
                   "soft reboot; then a hard reboot follows. Read by nova-compute."),
        cfg.IntOpt("mem_stats_period_seconds", default=10, min=0, help="Seconds between two memory statistics of the "
                   "balloon device of a guest. 0: no statistics. Read by nova-compute."),
        cfg.IntOpt("num_pcie_ports", default=0, min=0, max=28, help="Number of PCI Express ports of guests with a PCI "
                   "Express machine type (q35). Each device uses one, including devices attached to the running guest. "
                   "0: the ports used at start and eight more. Read by nova-compute."),
        cfg.IntOpt("device_detach_attempts", default=8, min=1, help="Number of times that a running guest is requested "
                   "to release a volume or an interface before the detach fails. Read by nova-compute."),
        cfg.IntOpt("device_detach_timeout", default=20, min=1,
                   help="Seconds to wait after each request of device_detach_attempts. Read by nova-compute."),
        cfg.StrOpt("sysinfo_serial", default="unique", choices=["none", "os", "hardware", "auto", "unique"],
                   help="Serial number in the SMBIOS of guests: the id of the server (unique), /etc/machine-id of the "
                        "host (os), the host UUID of libvirt (hardware), os if it exists and else hardware (auto), or "
                        "none. Read by nova-compute."),
        cfg.BoolOpt("swtpm_enabled", default=False, help="Offer virtual TPMs (hw:tpm_version), which need swtpm and "
                    "swtpm-tools on the host. Read by nova-compute."),
        *(cfg.StrOpt(f"swtpm_{kind}", default="tss", help=f"The {kind} that runs swtpm, as in qemu.conf. Read by "
                     "nova-compute, which makes it the owner of migrated TPM states.") for kind in ("user", "group")),
        cfg.ListOpt("supported_tpm_secret_security", default=["user", "host", "deployment"],
                    help="Values of hw:tpm_secret_security that this host offers. Read by nova-compute."),
        cfg.StrOpt("rescue_image_id", help="Id of the image from which servers are rescued when the request names "
                   "none. Unset: the image of the server. Read by nova-compute."),
        cfg.StrOpt("rescue_kernel_id", help="Id of the kernel image for rescue_image_id. Unset: the image boots by "
                   "itself. Read by nova-compute."),
        cfg.StrOpt("rescue_ramdisk_id",
                   help="Id of the ramdisk image for rescue_image_id. Unset: no ramdisk. Read by nova-compute."),
        cfg.StrOpt("migration_inbound_addr", default="$my_ip", help="IP address at which this host serves the disks of "
                   "servers that migrate while powered off. Read by nova-compute."),
        cfg.StrOpt("move_ports", default="49300-49399",
                   help="Range of TCP ports at which disks of migrating servers are served, as FIRST-LAST; each server "
                        "uses one port. Read by nova-compute. Open the range between compute hosts."),
        cfg.StrOpt("nfs_mount_point_base", default="$state_path/mnt",
                   help="Directory below which the NFS exports of Cinder are mounted. Read by nova-compute."),
        cfg.StrOpt("nfs_mount_options", help="Options for mounting NFS exports of Cinder, as for mount -o. Unset: the "
                   "defaults of mount. Read by nova-compute."),
        *_LIVE_MIGRATION,
        cfg.StrOpt("images_user", default="nobody", help="User account that runs qemu-img on images of tenants; an "
                   "account of its own is safest. Empty: the account of nova-compute, which is needed where "
                   "instances_path or the pool of volumes is on a file system on which root cannot change owners (NFS "
                   "with root_squash). Read by nova-compute."),
        cfg.IntOpt("images_cpu_time_limit", default=30, min=1,
                   help="Maximum CPU time in seconds to inspect an image; an image that needs more is refused. "
                        "Converting an image may take one minute more for each GiB. Read by nova-compute."),
        cfg.IntOpt("images_address_space_limit", default=2, min=1,
                   help="Maximum address space in GiB of a qemu-img process. Read by nova-compute."),
    ],
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
        cfg.StrOpt("ca_file", help="File with the CA certificates (PEM) that verify the certificates of vCenter and, "
                   "for snapshots, of its hosts. Unset: the CA certificates of the system. Ignored if insecure is set. "
                   "Read by nova-compute."),
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
                   "_base. Unset: the name of the host. Read by nova-compute. nova-compute services with the same "
                   "prefix share images."),
        cfg.BoolOpt("use_linked_clone", default=True, help="Create root disks as linked clones of the cached image, "
                    "which takes seconds and little space. Otherwise they are full copies. The image property "
                    "img_linked_clone overrides the option. Read by nova-compute."),
        cfg.IntOpt("connection_pool_size", default=10, min=1, help="Number of idle connections to vCenter that are "
                   "reused. Read by nova-compute. Raise it for hosts with many concurrent requests."),
        cfg.IntOpt("api_retry_count", default=10, min=0, help="Number of repetitions of a query to vCenter after "
                   "the connection was lost. Requests that change something are not repeated. Read by nova-compute."),
        cfg.FloatOpt("task_poll_interval", default=0.5, min=0.05, help="Seconds between two polls of a task of "
                     "vCenter. Read by nova-compute."),
        cfg.IntOpt("maximum_objects", default=100, min=1, help="Maximum number of objects in one answer of vCenter; "
                   "longer lists are read in parts. Read by nova-compute."),
        cfg.IntOpt("request_timeout", default=60, min=1, help="Seconds to wait for the answer of vCenter to a "
                   "request; then the request fails. Read by nova-compute."),
        cfg.IntOpt("task_timeout", default=3600, min=1, help="Seconds that a task of vCenter may take. Read by "
                   "nova-compute. Raise it for full copies of large disks on slow storage."),
        cfg.PortOpt("vnc_port", default=5900, help="First VNC port of guests on an ESX host. Read by nova-compute."),
        cfg.PortOpt("vnc_port_total", default=10000, min=1, help="Number of VNC ports from vnc_port on. Read by "
                    "nova-compute. It limits the number of guests with VNC in the cluster."),
        cfg.StrOpt("vnc_keymap", default="en-us", help="Keyboard layout of VNC consoles. Read by nova-compute."),
        cfg.StrOpt("serial_port_service_uri", help="URI of the virtual serial port concentrator (VSPC) to which guests "
                   "send the output of their serial port. Unset: guests have no serial port. Read by nova-compute."),
        cfg.URIOpt("serial_port_proxy_uri", schemes=["telnet", "telnets"], help="URI of the proxy through which guests "
                   "reach serial_port_service_uri. Unset: guests connect directly. Read by nova-compute."),
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
                   "divide the nodes of a large Ironic between hosts."),
        cfg.StrOpt("shard", help="Shard of Ironic whose nodes this host manages, together with the hosts of the same "
                   "value. Unset: the nodes of all shards. Read by nova-compute. Needs API version 1.82 of Ironic."),
        cfg.FloatOpt("api_retry_interval", default=2, min=0.05, help="Seconds between two requests for the state of a "
                     "node that is being deployed, cleaned, or powered on or off, and between two attempts while "
                     "Ironic has locked a node. Read by nova-compute."),
        cfg.IntOpt("serial_console_state_timeout", default=10, min=1, help="Seconds that Ironic gets to start the "
                   "serial console of a node. Read by nova-compute."),
    ],
}
