"""Options of the REST API ([api], [cors], [healthcheck], [oslo_middleware]), read by nova-api, of the EC2 API ([ec2]),
and of the metadata service ([metadata])."""

from oslo_config import cfg

OPTIONS = {
    "api": [
        cfg.StrOpt("listen", default="0.0.0.0", help="IP address on which nova-api accepts connections. The default "
                   "accepts them on all IPv4 addresses of the machine. Set it to one address when only a proxy may "
                   "reach the API. Read by nova-api."),
        cfg.PortOpt("port", default=8774, help="TCP port on which nova-api accepts connections. Read by nova-api."),
        cfg.IntOpt("workers", min=1, help="Number of worker processes of nova-api. Unset: one per CPU, at most 8. "
                   "Lower it on a machine that runs other services, too. Read by nova-api."),
        cfg.IntOpt("threads", default=16, min=1, help="Number of threads of each worker process, which is the number "
                   "of requests that a worker handles at the same time. Read by nova-api."),
        cfg.IntOpt("max_header_size", default=32768, min=4096,
                   help="Maximum size in bytes of the request line and headers of a request. A longer header is "
                        "answered with 431, a longer request line with 414. Read by nova-api."),
        cfg.FloatOpt("receive_timeout", default=30, min=1,
                     help="Seconds in which a client must send a whole request, counted from its first byte; otherwise "
                          "the answer is 408. Raise it for clients on very slow networks. Read by nova-api."),
        cfg.IntOpt("connections_per_client", default=256, min=1, help="Maximum number of connections of one client (an "
                   "IPv4 address, or an IPv6 /64 network) to each worker process. Further connections are answered "
                   "with 429. Addresses in trusted_proxies are not limited. Read by nova-api."),
        cfg.IntOpt("max_connections", default=1000, min=1,
                   help="Maximum number of connections to each worker process; never more than the limit of open "
                        "files less 128. Above the maximum, an idle connection of the client with the most "
                        "connections is closed, or the new connection is answered with 503. Read by nova-api."),
        cfg.ListOpt("trusted_proxies", default=[], help="Addresses and networks (10.0.0.5, 10.1.0.0/24) of the proxies "
                    "in front of the API. Headers X-Forwarded-* are accepted from these addresses only, and their "
                    "connections are not limited. Empty: X-Forwarded-* is ignored. Read by nova-api."),
        cfg.StrOpt("rate_limit_project", help="Maximum number of requests of one project, as REQUESTS/SECONDS "
                   "(6000/60). Further requests are answered with 429 and Retry-After. All workers on this host share "
                   "the count. Unset: no limit. Read by nova-api."),
        cfg.StrOpt("rate_limit_user", help="Maximum number of requests of one user, as REQUESTS/SECONDS (600/60). "
                   "Unset: no limit. See rate_limit_project. Read by nova-api."),
        cfg.StrOpt("rate_limit_address", help="Maximum number of requests of one client (an IPv4 address, or an IPv6 "
                   "/64 network), as REQUESTS/SECONDS (600/60), checked before authentication. For requests that "
                   "arrive through trusted_proxies the client is the address in X-Forwarded-For. Unset: no limit. Read "
                   "by nova-api."),
        cfg.ListOpt("rate_limit_free_roles", default=["admin", "service"],
                    help="Roles whose requests rate_limit_project and rate_limit_user do not count. Read by nova-api."),
        cfg.StrOpt("tls_cert_file", help="File with the TLS certificate of the API, followed by its intermediate "
                   "certificates (PEM). Unset: plain HTTP. Read by nova-api."),
        cfg.StrOpt("tls_key_file", help="File with the private key of the TLS certificate (PEM). Unset: the key is in "
                   "tls_cert_file. Read by nova-api."),
        cfg.StrOpt("tls_client_ca_file", help="File with the CA certificates (PEM) that verify the "
                   "certificates of clients. Unset: clients need no certificate. Read by nova-api."),
        cfg.StrOpt("auth_strategy", default="keystone", choices=["keystone", "noauth"],
                   help="Authentication of requests. keystone validates tokens; noauth trusts the headers "
                        "X-Auth-Token, X-User-Id, X-Project-Id and X-Roles, accepts connections from this machine "
                        "only, and is for tests only. Read by nova-api."),
        cfg.BoolOpt("legacy", default=False, help="Serve resources that upstream removed, up to microversion 2.35: "
                    "os-certificates and, with [network]driver = linuxnet, those of nova-network: create and delete of "
                    "os-networks and os-tenant-networks, os-fixed-ips, os-floating-ips-bulk, os-floating-ip-dns, "
                    "os-security-group-default-rules and os-virtual-interfaces. By default requests for them are "
                    "answered with 410. Set it for clients that still use these resources. Read by nova-api."),
        cfg.BoolOpt("status_page", default=False, help="Serve a page for operators at /status with hosts, capacity, "
                    "running and failed operations. It shows its content only to a token that the policy nova:status "
                    "allows (by default that of an admin). Read by nova-api."),
        cfg.IntOpt("max_limit", default=1000, min=1,
                   help="Maximum number of items in one page of a list. Read by nova-api and nova-conductor."),
        cfg.StrOpt("compute_link_prefix",
                   help="URL prefix of the links to Nova in responses, such as https://cloud.example.com/compute. "
                        "Unset: the host of the request. Set it when a proxy changes the path. Read by nova-api."),
        cfg.StrOpt("glance_link_prefix", help="URL prefix of the bookmark links to images in responses. Unset: the "
                   "host of the request. Read by nova-api."),
        cfg.BoolOpt("enable_instance_password", default=True,
                    help="Return the administrator password (adminPass) in the responses to create, rebuild, rescue "
                         "and evacuate. Disable it where guests do not use the password. Read by nova-api."),
        cfg.IntOpt("password_length", default=12, min=1,
                   help="Number of characters of generated administrator passwords. Read by nova-api."),
    ],
    "cors": [
        cfg.ListOpt("allowed_origin", default=[], help="Origins whose web pages may call the API from a browser, such "
                    "as https://dashboard.example.com (no trailing slash), or * for all. Empty: no cross-origin "
                    "headers are sent. The options of this group are those of oslo.middleware. Read by nova-api."),
        cfg.BoolOpt("allow_credentials", default=True,
                    help="Allow cross-origin requests with user credentials. Read by nova-api."),
        cfg.ListOpt("expose_headers", default=["OpenStack-API-Version", "X-OpenStack-Nova-API-Version",
                                               "X-Openstack-Request-Id", "X-Compute-Request-Id", "Location"],
                    help="Response headers that web pages of another origin may read. Read by nova-api."),
        cfg.IntOpt("max_age", default=3600, min=0,
                   help="Seconds for which a browser may cache a preflight response. Read by nova-api."),
        cfg.ListOpt("allow_methods", default=["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"],
                    help="HTTP methods that web pages of another origin may use. Read by nova-api."),
        cfg.ListOpt("allow_headers", default=["X-Auth-Token", "X-Service-Token", "X-Openstack-Request-Id",
                                              "OpenStack-API-Version", "X-OpenStack-Nova-API-Version"],
                    help="Request headers that web pages of another origin may send. Read by nova-api."),
    ],
    "healthcheck": [
        cfg.StrOpt("disable_by_file_path",
                   help="File whose existence makes /healthcheck answer 503, so that a load balancer takes the server "
                        "out of service. Unset: /healthcheck checks no file. Read by nova-api and nova-metadata."),
    ],
    "oslo_middleware": [
        cfg.IntOpt("max_request_body_size", default=114688, min=0, help="Maximum size of a request body in bytes; a "
                   "larger body is answered with 413. Read by nova-api."),
    ],
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
        cfg.StrOpt("tls_client_ca_file", help="File with the CA certificates (PEM) that verify the "
                   "certificates of clients. Unset: clients need no certificate. Read by nova-api-ec2."),
        cfg.StrOpt("nova_url", default="http://127.0.0.1:8774", help="URL of nova-api, without a version, to which "
                   "requests are passed with the token of the caller. Read by nova-api-ec2."),
        cfg.StrOpt("nova_ca_file", help="File with the CA certificates (PEM) that sign the certificate of nova_url. "
                   "Unset: the CA certificates of the system. Read by nova-api-ec2."),
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
        cfg.StrOpt("tls_client_ca_file", help="File with the CA certificates (PEM) that verify the "
                   "certificates of proxies. Unset: proxies need no certificate. Read by nova-metadata."),
        cfg.BoolOpt("namespaces", default=True,
                    help="Serve guests at 169.254.169.254:80 inside the network namespaces of this host's own "
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
