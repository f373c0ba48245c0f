"""A tempest plugin that adapts tests to the embedded networks of Nova.

Without a network service, tempest assumes that servers have no networks and skips most tests of servers. It also looks
up networks with an API that ended with microversion 2.35.
"""

import importlib
import inspect
import os

from oslo_config import cfg
from tempest import config
from tempest.api.compute import base
from tempest.lib.common import rest_client
from tempest.lib.common.utils import data_utils
from tempest.test_discover import plugins

from nova_tempest import text

CONF = config.CONF
GROUP = cfg.OptGroup("nova_networks", title="Embedded networks")
OPTIONS = [cfg.StrOpt("network_id", help="The network of all servers; [compute] fixed_network_name is its name.")]


class NovaPlugin(plugins.TempestPlugin):
    """A plugin without tests, which patches the tests of the Compute API."""

    def load_tests(self):
        share_network(base.BaseV2ComputeTest)
        for tests in network_tests():
            enable_tests(tests)
        text.install()
        use_oldest_microversion()
        here = os.path.dirname(os.path.abspath(__file__))
        return os.path.join(here, "tests"), os.path.dirname(here)

    def register_opts(self, conf):
        config.register_opt_group(conf, GROUP, OPTIONS)

    def get_opt_lists(self):
        return [(GROUP.name, OPTIONS)]


def share_network(tests):
    """Make all ``tests`` use the network of the deployment instead of creating a network."""
    checks = tests.skip_checks.__func__

    def skip_checks(cls):
        cls.create_default_network = False
        checks(cls)

    def get_tenant_network(cls, credentials_type="primary"):
        return {"id": CONF.nova_networks.network_id, "name": CONF.compute.fixed_network_name}

    tests.skip_checks = classmethod(skip_checks)
    tests.get_tenant_network = classmethod(get_tenant_network)


def use_oldest_microversion():
    """Make network clients use microversion 2.1, independent of the microversion of a test.

    Also use UUIDs for security groups and the field floating_ip_address, as Neutron does.
    """
    for name in ("floating_ips", "security_groups", "security_group_rules"):
        module = importlib.import_module(f"tempest.lib.services.compute.{name}_client")
        client = next(value for value in vars(module).values() if isinstance(value, type) and
                      value.__module__ == module.__name__)
        client.get_headers = rest_client.RestClient.get_headers
        client.request = rest_client.RestClient.request
        if name == "floating_ips":
            name_address(client)
    groups = importlib.import_module("tempest.api.compute.security_groups.base").BaseSecurityGroupsTest
    groups.generate_random_security_group_id = staticmethod(data_utils.rand_uuid)


def name_address(client):
    """Add floating_ip_address to all responses of the client with addresses."""
    for method in ("create_floating_ip", "show_floating_ip", "list_floating_ips"):
        setattr(client, method, naming(getattr(client, method)))


def naming(request):
    def renamed(*arguments, **options):
        answer = request(*arguments, **options)
        for address in answer["floating_ips"] if "floating_ips" in answer else [answer["floating_ip"]]:
            address["floating_ip_address"] = address["ip"]
        return answer

    return renamed


def network_tests():
    """Return the test classes of networks, security groups and floating addresses of the Compute API.

    The modules are imported late: their import reads the configuration of tempest, after the plugin registers options.
    """
    module = importlib.import_module
    return (module("tempest.api.compute.test_tenant_networks").ComputeTenantNetworksTest,
            module("tempest.api.compute.admin.test_security_groups").SecurityGroupsTestAdminJSON,
            module("tempest.api.compute.admin.test_quotas_negative").QuotasSecurityGroupAdminNegativeTest,
            module("tempest.api.compute.security_groups.base").BaseSecurityGroupsTest,
            module("tempest.api.compute.floating_ips.base").BaseFloatingIPsTest)


def enable_tests(tests):
    """Enable ``tests`` that tempest skips without a network service: Nova itself serves their requests."""
    tests.skip_checks = base.BaseV2ComputeTest.__dict__["skip_checks"]
    for name, test in list(vars(tests).items()):
        if name.startswith("test_") and hasattr(test, "__wrapped__"):
            setattr(tests, name, inspect.unwrap(test))
