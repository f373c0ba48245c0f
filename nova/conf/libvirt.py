"""[libvirt]: the libvirt driver, and [vnc]: the graphical consoles of its guests."""

from oslo_config import cfg

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
        cfg.StrOpt("sysinfo_serial", default="unique", choices=["none", "os", "hardware", "auto", "unique"],
                   help="The serial number in a guest's SMBIOS: the server's id (unique), that of the host (os: "
                        "/etc/machine-id, hardware: libvirt's host uuid, auto: os else hardware) or none."),
        cfg.IntOpt("images_cpu_time_limit", default=30, min=1,
                   help="Seconds of CPU time to look into an image; an image that needs more is refused."),
        cfg.IntOpt("images_address_space_limit", default=2, min=1, help="GiB of memory for the work on one image."),
    ],
    "vnc": [
        cfg.BoolOpt("enabled", default=False, help="Give guests a screen that is reached by VNC."),
        cfg.StrOpt("server_listen", default="127.0.0.1", help="The address on which the screens of guests listen."),
    ],
}
