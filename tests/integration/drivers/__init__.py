"""One contract suite for all hypervisor drivers.

``test_contract.py`` calls every verb of every role (:mod:`nova.operations.framework.guest_driver`) on every driver in
``subjects.SUBJECTS``. To add a driver:

1. Write a class derived from :class:`tests.integration.drivers.subject.Subject` in a module of its own
   (``uml_subject.py`` is the example). It starts the driver once per test module, describes small servers with their
   boot files, volumes and interfaces, and says how to wait for a guest that has booted.
2. Add it to ``subjects.SUBJECTS`` by name. ``missing()`` returns the reason to skip it on a machine without its tools.
3. Run ``pytest tests/integration/drivers -k NAME``.

``tools/feature_matrix.py`` decides which verbs a driver declares; add the driver to its COLUMNS and run it, so that
doc/drivers.md shows the driver (``tests/unit/test_feature_matrix.py``).

A verb that the driver does not declare must refuse (NotImplementedHere, or do nothing where the framework says so) and
leave the guest as it was: the suite checks that, too. If a verb is added to a role,
``test_every_verb_of_every_role_is_covered`` fails until a test is marked with it (``@covers``).
What only one driver can do, or does in a way of its own, is tested in files of that driver.
"""
