"""[cinder]: the volume service, for [volume]driver cinder (a keystoneauth group, read by conductors)."""

from oslo_config import cfg

OPTIONS = {
    None: [
        cfg.IntOpt("block_device_allocate_retries", default=60, min=0,
                   help="How often the volume service is asked again whether it has made a new volume."),
        cfg.IntOpt("reimage_timeout_per_gb", default=20, min=1,
                   help="Seconds per GiB that the volume service may take to write the volume that a server boots from "
                        "anew, when the server is rebuilt."),
        cfg.IntOpt("block_device_allocate_retries_interval", default=3, min=1, help="Seconds between two such looks."),
    ],
    "cinder": [
        cfg.StrOpt("catalog_info", default="volumev3::publicURL",
                   help="How to find the service in the catalog: type, name and interface, between colons. The options "
                        "service_type, service_name and valid_interfaces come before it."),
        cfg.StrOpt("os_region_name", help="Its region, unless region_name says it; unset: any."),
        cfg.IntOpt("http_retries", default=3, min=0,
                   help="How often a look that could not be sent is repeated. What changes something is repeated by "
                        "the operation that wants it."),
    ],
}
