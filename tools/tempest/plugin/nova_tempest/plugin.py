"""tempest takes "there is no network service" for "servers get no networks" and skips most tests of servers.

Nova's embedded networks need no service: a test that wants a default network has the one of the deployment.
"""

import os

from tempest.api.compute import base
from tempest.test_discover import plugins


class NovaPlugin(plugins.TempestPlugin):
    """Takes the demand for a network of their own back from all tests of the Compute API."""

    def load_tests(self):
        demand_no_network(base.BaseV2ComputeTest)
        here = os.path.dirname(os.path.abspath(__file__))
        return os.path.join(here, "tests"), os.path.dirname(here)

    def register_opts(self, conf):
        """No options."""

    def get_opt_lists(self):
        return []


def demand_no_network(tests):
    checks = tests.skip_checks.__func__

    def skip_checks(cls):
        cls.create_default_network = False
        checks(cls)

    tests.skip_checks = classmethod(skip_checks)
