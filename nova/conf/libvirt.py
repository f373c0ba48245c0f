"""[libvirt]: the libvirt driver."""

from oslo_config import cfg

_LIVE_MIGRATION = [
    cfg.StrOpt("live_migration_inbound_addr",
               help="The address at which this host takes over running guests and their disks; unset: my_ip."),
    cfg.StrOpt("live_migration_scheme",
               help="How the libvirtd of other hosts is reached, e.g. tcp, tls or ssh; unset: tcp, or tls with "
                    "live_migration_with_native_tls."),
    cfg.StrOpt("live_migration_uri",
               help="The URI by which the libvirtd of another host is reached, with %s for its "
                    "live_migration_inbound_addr; unset: qemu+SCHEME://%s/system."),
    cfg.IntOpt("live_migration_completion_timeout", default=800, min=0,
               help="Seconds that a migration may take for each GiB of memory and copied disks (at least 2 GiB are "
                    "counted); 0: as long as it wants."),
    cfg.StrOpt("live_migration_timeout_action", default="abort", choices=["abort", "force_complete"],
               help="What is done then: give it up, or post-copy (or pause the guest) so that it ends."),
    cfg.IntOpt("live_migration_downtime", default=500, min=100,
               help="Milliseconds that a guest may stand still at the end of its migration."),
    cfg.IntOpt("live_migration_downtime_steps", default=10, min=3,
               help="In so many steps a migration that does not come to its end is allowed that."),
    cfg.IntOpt("live_migration_downtime_delay", default=75, min=3,
               help="Seconds between two steps, for each GiB of memory and copied disks."),
    cfg.BoolOpt("live_migration_permit_post_copy", default=False,
                help="Whether a guest may run on its new host before all its memory is there: such a migration always "
                     "ends, but a broken network kills the guest."),
    cfg.BoolOpt("live_migration_permit_auto_converge", default=False,
                help="Whether guests that change their memory too fast are slowed down."),
    cfg.BoolOpt("live_migration_with_native_tls", default=False,
                help="Whether memory and disks go over TLS, with the certificates of QEMU."),
    cfg.IntOpt("live_migration_bandwidth", default=0, min=0, help="MiB per second that one may take; 0: all."),
    cfg.IntOpt("live_migration_parallel_connections", default=1, min=1, help="Connections for memory."),
    cfg.FloatOpt("live_migration_monitor_interval", default=5, min=1,
                 help="Seconds between two reports of how far a migration is."),
]

OPTIONS = {
    "libvirt": [
        cfg.StrOpt("virt_type", default="kvm", choices=["kvm", "qemu", "lxc"],
                   help="What kind of guests: kvm where the CPU virtualizes, qemu emulates the CPU (slow)."),
        cfg.StrOpt("connection_uri", default="", help="Where libvirt is; empty: the system's, for virt_type."),
        cfg.IntOpt("reconnect_timeout", default=30, min=0,
                   help="Seconds that an action waits for libvirt to come back before it fails."),
        cfg.StrOpt("cpu_mode", choices=["host-model", "host-passthrough", "custom", "none"],
                   help="The CPU that guests see; unset: host-model. host-passthrough needs virt_type kvm, custom "
                        "needs cpu_models, none leaves it to the hypervisor."),
        cfg.ListOpt("cpu_models", default=[], help="The CPU models for cpu_mode custom; the first one that the host "
                                                   "can provide is used."),
        cfg.ListOpt("cpu_model_extra_flags", default=[],
                    help="CPU features to add (name or +name) or to take away (-name)."),
        cfg.ListOpt("hw_machine_type", default=[],
                    help="The default machine type per architecture, e.g. x86_64=q35; unset: pc on x86_64."),
        cfg.ListOpt("disk_cachemodes", default=[],
                    help="The cache mode of local disks, e.g. file=writeback; unset: none where the file system of "
                         "instances_path has direct I/O, else writeback."),
        cfg.StrOpt("hw_disk_discard", choices=["ignore", "unmap"], help="What guests' discards do to local disks."),
        cfg.IntOpt("wait_soft_reboot_seconds", default=120, min=0,
                   help="Seconds a guest gets for a soft reboot before it becomes a hard one."),
        cfg.IntOpt("mem_stats_period_seconds", default=10, min=0,
                   help="How often guests report their use of memory; 0: never."),
        cfg.IntOpt("num_pcie_ports", default=0, min=0, max=28,
                   help="PCI Express ports of guests whose machine type has them (q35). Each device takes one, also "
                        "those attached while the guest runs. 0: what the guest needs when it starts, and eight more."),
        cfg.IntOpt("device_detach_attempts", default=8, min=1,
                   help="How often a running guest is asked to release a volume or an interface."),
        cfg.IntOpt("device_detach_timeout", default=20, min=1, help="Seconds that it gets each time."),
        cfg.StrOpt("sysinfo_serial", default="unique", choices=["none", "os", "hardware", "auto", "unique"],
                   help="The serial number in a guest's SMBIOS: the server's id (unique), that of the host (os: "
                        "/etc/machine-id, hardware: libvirt's host uuid, auto: os else hardware) or none."),
        cfg.StrOpt("rescue_image_id",
                   help="The image from which servers are rescued when nobody names another one; unset: their own."),
        cfg.StrOpt("rescue_kernel_id", help="Its kernel, if it needs one."),
        cfg.StrOpt("rescue_ramdisk_id", help="Its ramdisk, if it needs one."),
        cfg.StrOpt("migration_inbound_addr", default="$my_ip",
                   help="The address at which this host serves the disks of servers that move away while off."),
        cfg.StrOpt("move_ports", default="49300-49399",
                   help="The ports for that, first-last: one for each server that is on its way."),
        cfg.StrOpt("nfs_mount_point_base", default="$state_path/mnt",
                   help="Where shares of Cinder's NFS are mounted."),
        cfg.StrOpt("nfs_mount_options", help="With which options, as mount -o takes them."),
        *_LIVE_MIGRATION,
        cfg.StrOpt("images_user", default="nobody",
                   help="The user as whom qemu-img reads and converts images that tenants sent; better one of its own. "
                        "Empty: nova-compute's. It must be so where instances_path or the pool of volumes is on a "
                        "file system that gives no files away (NFS with root_squash)."),
        cfg.IntOpt("images_cpu_time_limit", default=30, min=1,
                   help="Seconds of CPU time to look into an image; an image that needs more is refused. Converting it "
                        "may take a minute more for each GiB."),
        cfg.IntOpt("images_address_space_limit", default=2, min=1, help="GiB of memory for the work on one image."),
    ],
}
