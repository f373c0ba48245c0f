"""Options of shares: the back end and the embedded shares ([share]), and Manila ([manila])."""

from oslo_config import cfg

OPTIONS = {
    None: [
        cfg.HostAddressOpt("my_shared_fs_storage_ip", default="$my_ip", help="IP address from which this host mounts "
                           "shares; access to shares is granted to it. Read by nova-compute."),
        cfg.IntOpt("stale_share_access_reconcile_interval", default=1800, min=0, help="Seconds between two checks for "
                   "access rules of shares that no server needs; they are removed. 0: never. Read by nova-conductor."),
    ],
    "share": [
        cfg.StrOpt("driver", default="local",
                   help="Back end of shares: local (directories of the hosts), manila (see [manila]) or none; a name "
                        "of the entry points nova.share.drivers and nova.share.services. Read by nova-conductor and "
                        "nova-compute; all need the same value. Do not change it while servers have shares."),
        cfg.StrOpt("pool", default="$state_path/shares", help="Directory for the embedded shares of this host, and for "
                   "the mount points of other shares. Read by nova-compute."),
        cfg.BoolOpt("shared", default=False, help="The pools of all hosts are one directory on a network file system, "
                    "so that an embedded share can be used on any host. By default a share is bound to the first host "
                    "that uses it. Read by nova-conductor and nova-compute; all need the same value."),
        cfg.StrOpt("nfs_mount_options", default="vers=4,nodev,nosuid,noexec",
                   help="Options for mounting NFS shares, as for mount -o. Read by nova-compute."),
        cfg.IntOpt("mount_timeout", default=60, min=1,
                   help="Seconds that mounting or unmounting a share may take. Read by nova-compute."),
    ],
    "manila": [
        cfg.IntOpt("share_apply_policy_timeout", default=10, min=1, help="Seconds that Manila may take to grant or to "
                   "revoke access to a share. Read by nova-conductor."),
        cfg.StrOpt("api_version", default="2.82", help="Microversion of requests to Manila. Read by nova-conductor."),
    ],
}
