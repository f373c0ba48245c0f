"""Tells tempest about the embedded networks of Nova, which it knows only as a network service's.

tempest takes "there is no network service" for "servers get no networks" and skips most tests of servers; and it
looks for the network by an API that ended with microversion 2.35.
"""

import os

from oslo_config import cfg
from tempest import config
from tempest.api.compute import base
from tempest.test_discover import plugins

CONF = config.CONF
GROUP = cfg.OptGroup("nova_networks", title="Embedded networks")
OPTIONS = [cfg.StrOpt("network_id", help="The network of all servers; [compute] fixed_network_name is its name.")]


class NovaPlugin(plugins.TempestPlugin):
    """No tests of its own: it changes what the tests of the Compute API ask for."""

    def load_tests(self):
        share_network(base.BaseV2ComputeTest)
        here = os.path.dirname(os.path.abspath(__file__))
        return os.path.join(here, "tests"), os.path.dirname(here)

    def register_opts(self, conf):
        config.register_opt_group(conf, GROUP, OPTIONS)

    def get_opt_lists(self):
        return [(GROUP.name, OPTIONS)]


def share_network(tests):
    """All ``tests`` use the network of the deployment, and none demands one of its own."""
    checks = tests.skip_checks.__func__

    def skip_checks(cls):
        cls.create_default_network = False
        checks(cls)

    def get_tenant_network(cls, credentials_type="primary"):
        return {"id": CONF.nova_networks.network_id, "name": CONF.compute.fixed_network_name}

    tests.skip_checks = classmethod(skip_checks)
    tests.get_tenant_network = classmethod(get_tenant_network)
