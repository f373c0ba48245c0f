"""[api]: the REST API."""

from oslo_config import cfg

OPTIONS = {
    "api": [
        cfg.StrOpt("listen", default="0.0.0.0", help="The address that nova-api listens on."),
        cfg.PortOpt("port", default=8774, help="The port that nova-api listens on."),
        cfg.IntOpt("workers", min=1, help="Worker processes; unset: one per CPU, at most 8."),
        cfg.IntOpt("threads", default=16, min=1, help="Threads of each worker."),
        cfg.IntOpt("max_header_size", default=32768, min=4096,
                   help="Bytes; a request whose first line and headers have more is refused with 431 (414)."),
        cfg.FloatOpt("receive_timeout", default=30, min=1,
                     help="Seconds in which a request must have come in whole, from its first byte on; else 408."),
        cfg.IntOpt("connections_per_client", default=256, min=1,
                   help="Connections that one client (an IPv4 address, an IPv6 /64) may have to each worker; one more "
                        "is answered with 429. trusted_proxies may have any number."),
        cfg.IntOpt("max_connections", default=1000, min=1,
                   help="Connections to each worker, at most as many as files may be open, less 128. Above that who "
                        "has most loses one that is idle, or the newcomer is answered with 503."),
        cfg.ListOpt("trusted_proxies", default=[],
                    help="Addresses and networks (10.0.0.5, 10.1.0.0/24) of the proxies in front of the API. Only what "
                         "they say in X-Forwarded-* is believed, and their connections are not counted."),
        cfg.StrOpt("rate_limit_project",
                   help="Requests that a project may send, in how many seconds, as 6000/60; more are 429 with "
                        "Retry-After. All workers of this host count together. Unset: any number."),
        cfg.StrOpt("rate_limit_user", help="The same for each user."),
        cfg.StrOpt("rate_limit_address",
                   help="The same for each client (an IPv4 address, an IPv6 /64), before it is asked who it is; of "
                        "requests by trusted_proxies the client that X-Forwarded-For names."),
        cfg.ListOpt("rate_limit_free_roles", default=["admin", "service"],
                    help="Roles whose requests are not counted by project and user."),
        cfg.StrOpt("tls_cert_file", help="The API's certificate, and those that lead to a root (PEM); unset: no TLS."),
        cfg.StrOpt("tls_key_file", help="The certificate's key (PEM); unset: it is in tls_cert_file, too."),
        cfg.StrOpt("tls_client_ca_file",
                   help="Certificates (PEM) of those who vouch for clients; unset: clients need no certificate."),
        cfg.StrOpt("auth_strategy", default="keystone", choices=["keystone", "noauth"],
                   help="noauth trusts the headers X-Auth-Token, X-User-Id, X-Project-Id, X-Roles: for tests only, and "
                        "from this machine only."),
        cfg.BoolOpt("legacy", default=False,
                    help="Serve again (to 2.35) what upstream removed with nova-network, where the networks are the "
                         "embedded ones: making and removing os-networks and os-tenant-networks, os-fixed-ips, "
                         "os-floating-ips-bulk, os-floating-ip-dns, os-security-group-default-rules and "
                         "os-virtual-interfaces. Otherwise they are answered with 410, as everything else that is "
                         "gone."),
        cfg.BoolOpt("status_page", default=False,
                    help="Serve a page for operators at /status: hosts, capacity, operations under way and failed. It "
                         "shows nothing to whom the policy nova:status does not let (by default admins, by a token)."),
        cfg.IntOpt("max_limit", default=1000, min=1, help="The most items that one page of a list has."),
        cfg.StrOpt("compute_link_prefix", help="What links begin with, in place of the request's own host."),
        cfg.StrOpt("glance_link_prefix", help="What image bookmarks begin with."),
        cfg.BoolOpt("enable_instance_password", default=True, help="Return adminPass when a server is created."),
        cfg.IntOpt("password_length", default=12, min=1, help="Length of generated passwords."),
    ],
    "cors": [
        cfg.ListOpt("allowed_origin", default=[],
                    help="Origins whose web pages may call the API from a browser, as https://dashboard.example.com "
                         "(no trailing slash), or * for all. Empty: no cross-origin headers are sent. This and the "
                         "following options have the names and meanings of oslo.middleware. Read by nova-api."),
        cfg.BoolOpt("allow_credentials", default=True, help="Allow cross-origin requests with user credentials."),
        cfg.ListOpt("expose_headers", default=["OpenStack-API-Version", "X-OpenStack-Nova-API-Version",
                                               "X-Openstack-Request-Id", "X-Compute-Request-Id", "Location"],
                    help="Response headers that web pages of another origin may read."),
        cfg.IntOpt("max_age", default=3600, min=0, help="Seconds for which a browser may cache a preflight response."),
        cfg.ListOpt("allow_methods", default=["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"],
                    help="Methods that web pages of another origin may use."),
        cfg.ListOpt("allow_headers", default=["X-Auth-Token", "X-Service-Token", "X-Openstack-Request-Id",
                                              "OpenStack-API-Version", "X-OpenStack-Nova-API-Version"],
                    help="Request headers that web pages of another origin may send."),
    ],
    "healthcheck": [
        cfg.StrOpt("disable_by_file_path",
                   help="While this file exists, /healthcheck answers 503, so that a load balancer takes the server "
                        "out of service. Unset: no such file. Read by nova-api and nova-metadata."),
    ],
    "oslo_middleware": [
        cfg.IntOpt("max_request_body_size", default=114688, min=0,
                   help="Bytes; a request with a larger body is refused with 413."),
    ],
}
