"""Options of the User Mode Linux driver (``compute_driver = uml``)."""

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
}
