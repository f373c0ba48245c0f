"""Tells tempest about the embedded networks of Nova, which it knows only as a network service's.

tempest takes "there is no network service" for "servers get no networks" and skips most tests of servers; and it
looks for the network by an API that ended with microversion 2.35.
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
    """No tests of its own: it changes what the tests of the Compute API ask for."""

    def load_tests(self):
        share_network(base.BaseV2ComputeTest)
        for tests in network_tests():
            serve_networks(tests)
        text.install()
        speak_old_versions()
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


def speak_old_versions():
    """Clients of networks ask by 2.1, whatever the version of a test: it uses them to reach its servers, where those
    of a network service have no versions. Ids, and what an address is called, are as such a service's, too."""
    for name in ("floating_ips", "security_groups", "security_group_rules"):
        module = importlib.import_module(f"tempest.lib.services.compute.{name}_client")
        client = next(found for found in vars(module).values() if isinstance(found, type) and
                      found.__module__ == module.__name__)
        client.get_headers = rest_client.RestClient.get_headers
        client.request = rest_client.RestClient.request
        if name == "floating_ips":
            name_address(client)
    groups = importlib.import_module("tempest.api.compute.security_groups.base").BaseSecurityGroupsTest
    groups.generate_random_security_group_id = staticmethod(data_utils.rand_uuid)


def name_address(client):
    """In every answer of the client in which there are addresses."""
    for method in ("create_floating_ip", "show_floating_ip", "list_floating_ips"):
        setattr(client, method, naming(getattr(client, method)))


def naming(ask):
    def asked(*arguments, **options):
        answer = ask(*arguments, **options)
        for address in answer["floating_ips"] if "floating_ips" in answer else [answer["floating_ip"]]:
            address["floating_ip_address"] = address["ip"]
        return answer

    return asked


def network_tests():
    """The tests of networks, groups and floating addresses by the Compute API. tempest reads its configuration when
    these modules are imported, and a plugin is asked for options before that."""
    module = importlib.import_module
    return (module("tempest.api.compute.test_tenant_networks").ComputeTenantNetworksTest,
            module("tempest.api.compute.admin.test_security_groups").SecurityGroupsTestAdminJSON,
            module("tempest.api.compute.admin.test_quotas_negative").QuotasSecurityGroupAdminNegativeTest,
            module("tempest.api.compute.security_groups.base").BaseSecurityGroupsTest,
            module("tempest.api.compute.floating_ips.base").BaseFloatingIPsTest)


def serve_networks(tests):
    """Nova itself is the network service that these ``tests`` want: what leaves them out for want of one is undone."""
    tests.skip_checks = base.BaseV2ComputeTest.__dict__["skip_checks"]
    for name, test in list(vars(tests).items()):
        if name.startswith("test_") and hasattr(test, "__wrapped__"):
            setattr(tests, name, inspect.unwrap(test))
