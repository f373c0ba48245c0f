"""[share]: who keeps shares; the embedded ones, directories of the hosts; and [manila], the service for them."""

from oslo_config import cfg

OPTIONS = {
    None: [
        cfg.HostAddressOpt("my_shared_fs_storage_ip", default="$my_ip",
                           help="The address from which this host mounts shares: they are opened for it."),
        cfg.IntOpt("stale_share_access_reconcile_interval", default=1800, min=0,
                   help="Seconds between two looks of a conductor for accesses to shares that no server needs any "
                        "more; 0: never."),
    ],
    "share": [
        cfg.StrOpt("driver", default="local",
                   help="Who keeps shares: local (Nova itself), manila (see [manila]) or none; a name of the entry "
                        "points nova.share.drivers (hosts) and nova.share.services (conductors). The same everywhere, "
                        "and not to be changed while servers have shares."),
        cfg.StrOpt("pool", default="$state_path/shares",
                   help="The directory of a host that has the embedded shares, and below which others are mounted."),
        cfg.BoolOpt("shared", default=False,
                    help="Whether all hosts reach one pool (a network file system): then an embedded share is not "
                         "bound to the first host that has it. The same on all hosts and conductors."),
        cfg.StrOpt("nfs_mount_options", default="vers=4,nodev,nosuid,noexec",
                   help="How hosts mount shares of the protocol NFS (mount -o)."),
        cfg.IntOpt("mount_timeout", default=60, min=1, help="Seconds that mounting or unmounting a share may take."),
    ],
    "manila": [
        cfg.IntOpt("share_apply_policy_timeout", default=10, min=1,
                   help="Seconds that the share service may take to give, or to take away, an access to a share."),
        cfg.StrOpt("api_version", default="2.82", help="The microversion of the share service that is asked for."),
    ],
}
