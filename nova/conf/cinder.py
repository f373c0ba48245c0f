"""Options of the volume service, read with [volume]driver = cinder. [cinder] also has keystoneauth's options."""

from oslo_config import cfg

OPTIONS = {
    None: [
        cfg.IntOpt("block_device_allocate_retries", default=60, min=0,
                   help="Number of times that Nova polls Cinder until a new volume is available; then the build fails. "
                        "Raise it where Cinder copies large images. Read by nova-conductor."),
        cfg.IntOpt("reimage_timeout_per_gb", default=20, min=1,
                   help="Seconds per GiB that Cinder may take to write an image to the root volume of a server during "
                        "a rebuild; then the rebuild fails. Raise it for slow storage. Read by nova-conductor."),
        cfg.IntOpt("block_device_allocate_retries_interval", default=3, min=1,
                   help="Seconds between two polls of block_device_allocate_retries. Read by nova-conductor."),
    ],
    "cinder": [
        cfg.StrOpt("catalog_info", default="volumev3::publicURL",
                   help="Entry of Cinder in the service catalog, as TYPE:NAME:INTERFACE. The options service_type, "
                        "service_name and valid_interfaces override its parts. Read by nova-conductor."),
        cfg.StrOpt("os_region_name", help="Region of Cinder in the service catalog. The option region_name overrides "
                   "it. Unset: any region. Read by nova-conductor."),
        cfg.IntOpt("http_retries", default=3, min=0, help="Number of times that a GET request to Cinder is sent again "
                   "when no connection could be made. Requests that change something are repeated by the operation "
                   "that sends them. Read by nova-conductor."),
    ],
}
