"""Options of the metadata service ([metadata]), read by nova-metadata."""

from oslo_config import cfg

OPTIONS = {
    "metadata": [
        cfg.StrOpt("listen", default="127.0.0.1", help="IP address on which nova-metadata accepts requests of metadata "
                   "proxies. Read by nova-metadata. Set it to an address that the proxies reach."),
        cfg.PortOpt("port", default=8775, help="TCP port on which nova-metadata accepts requests of metadata proxies. "
                    "Read by nova-metadata."),
        cfg.StrOpt("metadata_proxy_shared_secret", default="", secret=True, help="Secret with which metadata proxies "
                   "sign X-Instance-ID (HMAC-SHA256). Empty: requests of proxies are refused. Read by nova-metadata. "
                   "Set it to the secret of Neutron's metadata agent."),
        cfg.StrOpt("tls_cert_file", help="File with the TLS certificate for metadata proxies, followed by its "
                   "intermediate certificates (PEM). Requests of guests inside network namespaces do not use TLS. "
                   "Unset: plain HTTP. Read by nova-metadata."),
        cfg.StrOpt("tls_key_file", help="File with the private key of the TLS certificate (PEM). Unset: the key is in "
                   "tls_cert_file. Read by nova-metadata."),
        cfg.StrOpt("tls_client_ca_file", help="File with the CA certificates (PEM) that must have signed the "
                   "certificates of proxies. Unset: proxies need no certificate. Read by nova-metadata."),
        cfg.BoolOpt("namespaces", default=True,
                    help="Serve guests at 169.254.169.254:80 inside the network namespaces of this host's embedded "
                         "networks. Read by nova-metadata. Disable it where only proxies use the service."),
        cfg.StrOpt("user", default="nova", help="User account that handles requests when nova-metadata starts as root, "
                   "which namespaces need. root only opens the sockets. If the account does not exist, nobody is used. "
                   "Read by nova-metadata."),
        cfg.IntOpt("threads", default=8, min=1, help="Number of threads, which is the number of requests handled at "
                   "the same time. Read by nova-metadata."),
        cfg.IntOpt("cache_expiration", default=15, min=0,
                   help="Seconds for which the metadata of an instance is cached. Read by nova-metadata."),
        cfg.StrOpt("vendordata_jsonfile_path", help="JSON file that every server receives as its vendor data. Unset: "
                   "empty vendor data. Read by nova-metadata and nova-compute."),
        cfg.StrOpt("config_drive_skip_versions",
                   default="1.0 2007-01-19 2007-03-01 2007-08-29 2007-10-10 2007-12-15 2008-02-01 2008-09-01",
                   help="EC2 metadata versions that config drives omit, separated by spaces. Read by nova-compute."),
    ],
}
