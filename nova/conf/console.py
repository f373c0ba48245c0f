"""Options of consoles: [vnc], [spice], [serial_console], [mks], and [console] and [consoleauth] of the proxies."""

from oslo_config import cfg, types


def _proxy(name: str, prefix: str, port: int) -> list[cfg.Opt]:
    return [cfg.StrOpt(f"{prefix}_host", default="0.0.0.0",
                       help=f"IP address on which {name} listens. Read by {name}."),
            cfg.PortOpt(f"{prefix}_port", default=port, help=f"TCP port on which {name} listens. Read by {name}.")]


def _server(protocol: str) -> list[cfg.Opt]:
    return [
        cfg.BoolOpt("enabled", default=False,
                    help=f"Give guests a {protocol} console when they start. Read by nova-compute."),
        cfg.StrOpt("server_listen", default="127.0.0.1", help=f"IP address on which the {protocol} servers of guests "
                   "listen. Read by nova-compute. Set it to an address that the console proxies can reach."),
        cfg.StrOpt("server_proxyclient_address", default="127.0.0.1", help="Address of this host at which console "
                   f"proxies reach the {protocol} servers of its guests. Read by nova-compute.")]


OPTIONS = {
    None: [
        cfg.StrOpt("cert", help="File with the TLS certificate of a console proxy, followed by its intermediate "
                   "certificates (PEM). Unset: plain HTTP; otherwise only TLS is accepted. Read by console proxies."),
        cfg.StrOpt("key", help="File with the private key of the certificate (PEM). Unset: the key is in the file of "
                   "option cert. Read by console proxies."),
        cfg.BoolOpt("ssl_only", default=False, help="Refuse to start without a certificate. Read by console proxies."),
        cfg.StrOpt("web", help="Directory with the web pages that a console proxy serves. Unset: the directory of the "
                   "Debian package (/usr/share/novnc, /usr/share/spice-html5). Empty: no pages. Read by console "
                   "proxies."),
    ],
    "console": [
        cfg.ListOpt("allowed_origins", default=[], help="Host names of web pages that may open consoles, besides the "
                    "host name of the proxy. Read by console proxies. Set it for a dashboard that connects by itself."),
        cfg.StrOpt("ssl_ciphers", help="Ciphers for TLS 1.2, in the syntax of OpenSSL. Unset: the default of Python. "
                   "Read by console proxies."),
        cfg.StrOpt("ssl_minimum_version", default="default", choices=["default", "tlsv1_2", "tlsv1_3"],
                   help="Oldest TLS version that browsers may use; default means tlsv1_2. Read by console proxies."),
        cfg.IntOpt("max_connections", default=4096, min=1, help="Maximum number of connections to a proxy; never more "
                   "than half of the limit of open files. Further connections are closed immediately. Read by console "
                   "proxies."),
        cfg.IntOpt("connections_per_server", default=16, min=1, help="Maximum number of connections to the consoles of "
                   "one server in a proxy. Further requests are answered with 429. Read by console proxies."),
        cfg.StrOpt("rate_limit_address", help="Maximum number of requests of one client (an IPv4 address, or an IPv6 "
                   "/64 network) to a proxy, as REQUESTS/SECONDS (600/60); a console page needs about 100. Further "
                   "requests are answered with 429 and Retry-After. Unset: no limit. Read by console proxies."),
        cfg.ListOpt("guest_networks", default=[], help="Networks (10.1.0.0/24) with the consoles of guests. Proxies "
                    "connect to no other addresses, even if a host reports them. Empty: any. Read by console proxies."),
    ],
    "consoleauth": [
        cfg.IntOpt("token_ttl", default=600, min=1,
                   help="Seconds for which the URL of a console is valid. Read by nova-conductor."),
        cfg.BoolOpt("enforce_session_timeout", default=False, help="Close an open console when its URL expires "
                    "(token_ttl). By default it stays open. Read by console proxies."),
    ],
    "vnc": [
        *_server("VNC"),
        cfg.StrOpt("novncproxy_base_url", default="http://127.0.0.1:6080/vnc_auto.html",
                   help="URL of the page of nova-novncproxy. The token of a console is added. Read by nova-api."),
        *_proxy("nova-novncproxy", "novncproxy", 6080),
        cfg.ListOpt("auth_schemes", default=["none"], item_type=types.String(choices=["none", "vencrypt"]),
                    help="Authentication between nova-novncproxy and QEMU: none, or vencrypt (TLS with certificates on "
                         "both sides). The first offer of QEMU in this list is used. Read by nova-novncproxy."),
        cfg.StrOpt("vencrypt_client_key", help="File with the private key of vencrypt_client_cert (PEM). Read by "
                   "nova-novncproxy."),
        cfg.StrOpt("vencrypt_client_cert", help="File with the certificate (PEM) that nova-novncproxy presents to "
                   "hosts. Unset: none. Read by nova-novncproxy."),
        cfg.StrOpt("vencrypt_ca_certs", help="File with the CA certificates (PEM) that verify the certificates of "
                   "hosts. vencrypt requires it. Read by nova-novncproxy."),
    ],
    "spice": [
        *_server("SPICE"),
        cfg.BoolOpt("agent_enabled", default=True, help="Give guests a channel for the SPICE agent, which adjusts the "
                    "screen size to the window and shares the clipboard. Read by nova-compute."),
        cfg.BoolOpt("require_secure", default=False, help="Accept only TLS connections to SPICE servers of guests "
                    "(needs spice_tls in qemu.conf). Clients of spice-direct consoles can use TLS, but not "
                    "nova-spicehtml5proxy. Read by nova-compute."),
        cfg.StrOpt("image_compression", choices=["auto_glz", "auto_lz", "quic", "glz", "lz", "off"],
                   help="Lossless compression of SPICE images. Unset: the default of QEMU. Read by nova-compute."),
        cfg.StrOpt("jpeg_compression", choices=["auto", "never", "always"],
                   help="Lossy compression of SPICE images. Unset: the default of QEMU. Read by nova-compute."),
        cfg.StrOpt("zlib_compression", choices=["auto", "never", "always"],
                   help="Additional zlib compression of SPICE images. Unset: the default of QEMU. Read "
                        "by nova-compute."),
        cfg.BoolOpt("playback_compression", help="Compress sound. Unset: the default of QEMU. Read by nova-compute."),
        cfg.StrOpt("streaming_mode", choices=["filter", "all", "off"], help="Selection of screen areas that are sent "
                   "as video streams. Unset: the default of QEMU. Read by nova-compute."),
        cfg.StrOpt("html5proxy_base_url", default="http://127.0.0.1:6082/spice_auto.html",
                   help="URL of the page of nova-spicehtml5proxy. The token of a console is added. Read by nova-api."),
        *_proxy("nova-spicehtml5proxy", "html5proxy", 6082),
        cfg.StrOpt("spice_direct_proxy_base_url", default="http://127.0.0.1:13002/nova", help="URL of a proxy for "
                   "native SPICE clients (Kerbside, not part of Nova). The token is added. Read by nova-api."),
    ],
    "serial_console": [
        cfg.BoolOpt("enabled", default=False, help="Connect the serial ports of guests to TCP ports of the host when "
                    "they start, for serial consoles. Read by nova-compute."),
        cfg.StrOpt("port_range", default="10000:20000", regex=r"^\d{1,5}:\d{1,5}$", help="Range of TCP ports of this "
                   "host for the serial ports of guests, as FIRST:END (END excluded). Read by nova-compute."),
        cfg.StrOpt("proxyclient_address", default="127.0.0.1", help="IP address of this host on which the serial ports "
                   "of guests listen, and at which console proxies reach them. Read by nova-compute."),
        cfg.StrOpt("base_url", default="ws://127.0.0.1:6083/",
                   help="URL of nova-serialproxy. The token of a console is added. Read by nova-api."),
        *_proxy("nova-serialproxy", "serialproxy", 6083),
    ],
    "mks": [
        cfg.BoolOpt("enabled", default=False, help="Offer MKS consoles (webmks), the screens of VMware guests. Read by "
                    "nova-compute with the driver vmware. A proxy for MKS is not part of Nova."),
        cfg.URIOpt("mksproxy_base_url", schemes=["http", "https"], default="http://127.0.0.1:6090/",
                   help="URL of the MKS proxy, to which the token of a console is added. Read by nova-api. The proxy "
                        "requests host, port and ticket of the token at os-console-auth-tokens."),
    ],
}
