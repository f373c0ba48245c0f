"""Run the functional tests of a client sequentially, and write the results as subunit v2.

usage: functional.py openstacksdk|novaclient OUTPUT EXCLUDED [PATTERN ...]
"""

import importlib
import pathlib
import sys
import types
import unittest

import subunit
import testtools

# Modules that test the Compute API; the other cloud layer tests of openstacksdk need other services.
SUITES = {
    "openstacksdk": ["openstack.tests.functional.compute.v2",
                     "openstack.tests.functional.cloud.test_compute",
                     "openstack.tests.functional.cloud.test_inventory"],
    "novaclient": ["novaclient.tests.functional"],
}


def tests_of(name):
    """Return the tests of a module, or of all modules of a package."""
    module = importlib.import_module(name)
    if not hasattr(module, "__path__"):
        return unittest.defaultTestLoader.loadTestsFromModule(module)
    directory = pathlib.Path(next(iter(module.__path__)))
    top = directory.parents[name.count(".")]
    return unittest.defaultTestLoader.discover(str(directory), top_level_dir=str(top))


def prepare_openstacksdk():
    """Adapt the tests of openstacksdk to a cloud without Cinder and Neutron.

    Without Cinder they skip all Compute tests, and query it for volumes to delete with a server. They also create
    networks for servers in Neutron.
    """
    functional = importlib.import_module("openstack.tests.functional.base").BaseFunctionalTest
    tests = importlib.import_module("openstack.tests.functional.compute.v2.base").BaseComputeTest

    if not importlib.import_module("openstack").connect(cloud="devstack").has_service("block-storage"):
        def set_up(self):
            functional.setUp(self)
            self.compute_client, self.admin_compute_client = self.user_cloud.compute, self.operator_cloud.compute

        tests.setUp = set_up
        importlib.import_module("openstack.connection").Connection.get_volumes = lambda *_arguments: []
    networks = importlib.import_module("openstack.tests.functional.compute.v2.test_server").test_network
    networks.create_network = lambda *_arguments: (network_of("devstack"), None)
    networks.delete_network = lambda *_arguments: None
    keep_image()


def keep_image():
    """Restore the image metadata that a test deletes, since other tests boot from the image."""
    tests = importlib.import_module("openstack.tests.functional.compute.v2.test_image").TestImage
    set_up = tests.setUp

    def keep(self):
        set_up(self)
        self.addCleanup(self.admin_compute_client.set_image_metadata, self.image, **self.image.metadata)

    tests.setUp = keep


def network_of(cloud):
    """Return the network of the stack, as listed for a client of this cloud."""
    response = importlib.import_module("openstack").connect(cloud=cloud).compute.get("/os-networks", microversion="2.1")
    network = response.json()["networks"][0]
    return types.SimpleNamespace(id=network["id"], name=network["label"])


def prepare_novaclient():
    """Adapt the tests of novaclient, which expect Neutron networks and the console output of CirrOS."""
    make_project("novaclient")
    base = importlib.import_module("novaclient.tests.functional.base")
    base.CACHE.update(network=network_of("functional_admin"), multiple_networks=False)
    base.BOOT_IS_COMPLETE = "login: "
    # The test expects Keystone at /identity, as in DevStack.
    tests = importlib.import_module("novaclient.tests.functional.test_auth").TestAuthentication
    tests._get_url = lambda self, _version: self.cli_clients.uri


def make_project(name):
    """Create a project, unless it exists, and give the administrator the admin role in it."""
    admin = importlib.import_module("openstack").connect(cloud="devstack-admin")
    project = admin.identity.find_project(name, ignore_missing=True) or admin.identity.create_project(name=name)
    admin.identity.assign_project_role_to_user(
        project, admin.current_user_id, admin.identity.find_role("admin", ignore_missing=False))


def excluded_names(path):
    lines = (line.strip() for line in path.read_text().splitlines())
    return {line for line in lines if line and not line.startswith("#")}


def main(suite, output, excluded, *patterns):
    {"openstacksdk": prepare_openstacksdk, "novaclient": prepare_novaclient}[suite]()
    excluded_tests = excluded_names(pathlib.Path(excluded))
    chosen = [test for name in SUITES[suite] for test in testtools.iterate_tests(tests_of(name))
              if test.id() not in excluded_tests
              and (not patterns or any(pattern in test.id() for pattern in patterns))]
    with open(output, "wb") as file:
        result = testtools.ExtendedToStreamDecorator(testtools.CopyStreamResult(
            [subunit.StreamResultToBytes(file), testtools.StreamToDict(say)]))
        result.startTestRun()
        unittest.TestSuite(chosen).run(result)
        result.stopTestRun()


def say(test):
    """Print a line per test, and the details of failures."""
    print(test["status"], test["id"], flush=True)
    if test["status"] not in ("success", "exists"):
        for name, detail in test["details"].items():
            if not name.startswith(("pythonlogging", "stdout", "stderr")):  # of all tests until now
                print(detail.as_text(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
