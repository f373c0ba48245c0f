"""Consoles of guests: [vnc] and the like on hosts and in the API, [console] in the proxies, [consoleauth] of tokens."""

from oslo_config import cfg, types

OPTIONS = {
    None: [
        cfg.StrOpt("cert", help="The certificate of a console proxy, and those that lead to a root (PEM). With it a "
                                "proxy speaks TLS only; unset: no TLS."),
        cfg.StrOpt("key", help="The certificate's key (PEM); unset: it is in cert, too."),
        cfg.BoolOpt("ssl_only", default=False, help="Refuse to start without a certificate. Read by console proxies."),
        cfg.StrOpt("web", help="The directory of the web pages that a console proxy serves; unset: where Debian's "
                               "packages have them (/usr/share/novnc, /usr/share/spice-html5). Empty: none."),
    ],
    "console": [
        cfg.ListOpt("allowed_origins", default=[], help="Names of hosts, besides the proxy's own, whose web pages may "
                    "open consoles (a dashboard that connects by itself)."),
        cfg.StrOpt("ssl_ciphers", help="The ciphers of TLS 1.2, as OpenSSL names them; unset: Python's choice."),
        cfg.StrOpt("ssl_minimum_version", default="default", choices=["default", "tlsv1_2", "tlsv1_3"],
                   help="The oldest TLS that is spoken; default: 1.2."),
        cfg.IntOpt("max_connections", default=4096, min=1, help="Connections to a proxy, at most as many as half of "
                   "the files that it may have open; further ones are closed at once."),
        cfg.IntOpt("connections_per_server", default=16, min=1,
                   help="Consoles of one server that are open in a proxy at the same time; one more is refused (429)."),
        cfg.StrOpt("rate_limit_address", help="Requests that a client (an IPv4 address, an IPv6 /64) may send to a "
                   "proxy, in how many seconds, as 600/60 (a web page of consoles is some 100); more are 429 with "
                   "Retry-After. Unset: any number."),
        cfg.ListOpt("guest_networks", default=[],
                    help="Networks (10.1.0.0/24) where the consoles of guests are: proxies connect to no other "
                         "addresses, even if a host reports them. Empty: any. Read by console proxies."),
    ],
    "consoleauth": [
        cfg.IntOpt("token_ttl", default=600, min=1,
                   help="Seconds in which the URL of a console can be opened. Read by nova-conductor."),
        cfg.BoolOpt("enforce_session_timeout", default=False,
                    help="Whether proxies close a console when the time of its URL is over."),
    ],
    "vnc": [
        cfg.BoolOpt("enabled", default=False, help="Give guests a screen that is reached by VNC."),
        cfg.StrOpt("server_listen", default="127.0.0.1", help="The address on which the screens of guests listen."),
        cfg.StrOpt("server_proxyclient_address", default="127.0.0.1",
                   help="The address at which proxies reach the screens of this host's guests."),
        cfg.StrOpt("novncproxy_base_url", default="http://127.0.0.1:6080/vnc_auto.html",
                   help="The URL of nova-novncproxy's page for users. Read by nova-api."),
        cfg.StrOpt("novncproxy_host", default="0.0.0.0", help="The address that nova-novncproxy listens on."),
        cfg.ListOpt("auth_schemes", default=["none"], item_type=types.String(choices=["none", "vencrypt"]),
                    help="How nova-novncproxy and QEMU recognize one another: none, or vencrypt (TLS with certificates "
                         "on both sides). Of what QEMU offers the first that is named here is taken."),
        cfg.StrOpt("vencrypt_client_key", help="The key (PEM) that nova-novncproxy shows hosts."),
        cfg.StrOpt("vencrypt_client_cert", help="The certificate for it (PEM)."),
        cfg.StrOpt("vencrypt_ca_certs", help="Certificates (PEM) of those who vouch for hosts."),
        cfg.PortOpt("novncproxy_port", default=6080, help="The port that nova-novncproxy listens on."),
    ],
    "spice": [
        cfg.BoolOpt("enabled", default=False, help="Give guests a screen that is reached by SPICE."),
        cfg.BoolOpt("agent_enabled", default=True, help="Guests get a channel for SPICE's agent: it follows the size "
                    "of the window, and copies and pastes."),
        cfg.StrOpt("server_listen", default="127.0.0.1", help="The address on which the screens of guests listen."),
        cfg.StrOpt("server_proxyclient_address", default="127.0.0.1",
                   help="The address at which proxies reach the screens of this host's guests."),
        cfg.BoolOpt("require_secure", default=False, help="Screens speak TLS only (spice_tls in qemu.conf): then "
                    "nova-spicehtml5proxy cannot reach them, but consoles of the type spice-direct can."),
        cfg.StrOpt("image_compression", choices=["auto_glz", "auto_lz", "quic", "glz", "lz", "off"],
                   help="How pictures are compressed without loss; unset: QEMU's choice."),
        cfg.StrOpt("jpeg_compression", choices=["auto", "never", "always"],
                   help="When pictures are compressed with loss; unset: QEMU's choice."),
        cfg.StrOpt("zlib_compression", choices=["auto", "never", "always"],
                   help="When pictures are compressed by zlib as well; unset: QEMU's choice."),
        cfg.BoolOpt("playback_compression", help="Whether sound is compressed; unset: QEMU's choice."),
        cfg.StrOpt("streaming_mode", choices=["filter", "all", "off"],
                   help="What is sent as a video; unset: QEMU's choice."),
        cfg.StrOpt("html5proxy_base_url", default="http://127.0.0.1:6082/spice_auto.html",
                   help="The URL of nova-spicehtml5proxy's page for users. Read by nova-api."),
        cfg.StrOpt("html5proxy_host", default="0.0.0.0", help="The address that nova-spicehtml5proxy listens on."),
        cfg.PortOpt("html5proxy_port", default=6082, help="The port that nova-spicehtml5proxy listens on."),
        cfg.StrOpt("spice_direct_proxy_base_url", default="http://127.0.0.1:13002/nova", help="The URL for users of a "
                   "proxy for SPICE's own clients, which is not part of Nova (Kerbside). Read by nova-api."),
    ],
    "serial_console": [
        cfg.BoolOpt("enabled", default=False,
                    help="Let users reach the serial ports of guests: guests that start get TCP ports for them."),
        cfg.StrOpt("port_range", default="10000:20000", regex=r"^\d{1,5}:\d{1,5}$",
                   help="The TCP ports of this host for them: first:last, without the last one."),
        cfg.StrOpt("proxyclient_address", default="127.0.0.1",
                   help="The address of this host on which they listen, and at which proxies reach them."),
        cfg.StrOpt("base_url", default="ws://127.0.0.1:6083/",
                   help="The URL of nova-serialproxy for users. Read by nova-api."),
        cfg.StrOpt("serialproxy_host", default="0.0.0.0", help="The address that nova-serialproxy listens on."),
        cfg.PortOpt("serialproxy_port", default=6083, help="The port that nova-serialproxy listens on."),
    ],
}
