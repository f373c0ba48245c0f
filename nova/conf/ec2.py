"""Options of the EC2 API ([ec2]), read by nova-api-ec2."""

from oslo_config import cfg

OPTIONS = {
    "ec2": [
        cfg.BoolOpt("enabled", default=False, help="Start the EC2 API in nova-allinone. Read by nova-allinone; the "
                    "command nova-api-ec2 always serves it."),
        cfg.StrOpt("listen", default="127.0.0.1", help="IP address on which nova-api-ec2 accepts connections. Read by "
                   "nova-api-ec2. Set it to an address that clients reach."),
        cfg.PortOpt("port", default=8788, help="TCP port on which nova-api-ec2 accepts connections. Read by "
                    "nova-api-ec2."),
        cfg.IntOpt("workers", default=1, min=1, help="Number of worker processes. Read by nova-api-ec2. Raise it if "
                   "the requests of clients use a whole CPU."),
        cfg.IntOpt("threads", default=16, min=1, help="Number of threads of each worker process, which is the number "
                   "of requests that a worker handles at the same time. Read by nova-api-ec2."),
        cfg.StrOpt("tls_cert_file", help="File with the TLS certificate of the EC2 API, followed by its intermediate "
                   "certificates (PEM). Unset: plain HTTP. Read by nova-api-ec2."),
        cfg.StrOpt("tls_key_file", help="File with the private key of the TLS certificate (PEM). Unset: the key is in "
                   "tls_cert_file. Read by nova-api-ec2."),
        cfg.StrOpt("tls_client_ca_file", help="File with the CA certificates (PEM) that must have signed the "
                   "certificates of clients. Unset: clients need no certificate. Read by nova-api-ec2."),
        cfg.StrOpt("nova_url", default="http://127.0.0.1:8774", help="URL of nova-api, without a version, to which "
                   "requests are passed with the token of the caller. Read by nova-api-ec2."),
        cfg.StrOpt("nova_ca_file", help="File with the CA certificates (PEM) that sign the certificate of nova_url. "
                   "Unset: those of the system. Read by nova-api-ec2."),
        cfg.IntOpt("nova_timeout", default=60, min=1, help="Seconds to wait for the response to each request to "
                   "nova-api; then the EC2 request fails with the error Unavailable. Read by nova-api-ec2."),
        cfg.StrOpt("region", default="RegionOne", help="Name of the only region in the response to DescribeRegions. "
                   "Read by nova-api-ec2. Set it to the region of the Keystone catalog."),
        cfg.StrOpt("public_url", help="URL of the EC2 API that DescribeRegions returns. Unset: the host of the "
                   "request. Set it behind a proxy that changes the host. Read by nova-api-ec2."),
        cfg.IntOpt("max_listed", default=10000, min=1, help="Maximum number of servers, images, volumes or snapshots "
                   "of a project that a request reads. A request that has to read more fails with the error "
                   "ResourceCountExceeded. Read by nova-api-ec2."),
    ],
}
