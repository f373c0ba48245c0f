"""[metadata]: the metadata service."""

from oslo_config import cfg

OPTIONS = {
    "metadata": [
        cfg.StrOpt("listen", default="127.0.0.1", help="The address of the service for proxies."),
        cfg.PortOpt("port", default=8775, help="The port of the service for proxies."),
        cfg.StrOpt("metadata_proxy_shared_secret", default="", secret=True,
                   help="The secret that proxies sign X-Instance-ID with (HMAC-SHA256); empty: no proxies."),
        cfg.StrOpt("tls_cert_file",
                   help="The certificate that proxies see, and those that lead to a root (PEM); unset: no TLS. "
                        "Guests are answered without it."),
        cfg.StrOpt("tls_key_file", help="The certificate's key (PEM); unset: it is in tls_cert_file, too."),
        cfg.StrOpt("tls_client_ca_file",
                   help="Certificates (PEM) of those who vouch for proxies; unset: proxies need no certificate."),
        cfg.BoolOpt("namespaces", default=True,
                    help="Also answer at 169.254.169.254:80 inside the namespaces of this host's networks."),
        cfg.StrOpt("user", default="nova",
                   help="The account that answers guests when nova-metadata is started as root, which it needs to be "
                        "for namespaces: root makes the sockets and reads nothing from them. Where there is no such "
                        "account it is nobody."),
        cfg.IntOpt("threads", default=8, min=1, help="Threads of the service."),
        cfg.IntOpt("cache_expiration", default=15, min=0, help="Seconds that an instance's metadata is kept."),
        cfg.StrOpt("vendordata_jsonfile_path", help="A JSON file whose content is every server's vendor data."),
        cfg.StrOpt("config_drive_skip_versions",
                   default="1.0 2007-01-19 2007-03-01 2007-08-29 2007-10-10 2007-12-15 2008-02-01 2008-09-01",
                   help="EC2 versions that config drives leave out."),
    ],
}
