"""The feature matrix of the hypervisor drivers in doc/drivers.md."""

import pytest

from tools import feature_matrix
from tools.feature_matrix import COLUMNS, DOCUMENT, FEATURES, ROLES, document, is_supported, overrides

pytest.importorskip("libvirt")


def test_feature_matrix_of_the_documentation_is_current():
    assert DOCUMENT.read_text() == document(), "run python -m tools.feature_matrix"


@pytest.mark.parametrize("column", COLUMNS)
def test_declared_capabilities_have_their_verbs(column):
    driver = COLUMNS[column]()
    capabilities = {feature.capability: feature for feature in FEATURES if feature.capability}
    assert driver.capabilities <= capabilities.keys()
    for capability in driver.capabilities:
        assert all(overrides(driver, verb) for verb in capabilities[capability].verbs), capability


def test_verbs_of_features_exist():
    for feature in FEATURES:
        for verb in feature.verbs:
            role, name = verb.split(".")
            assert callable(getattr(ROLES[role], name)), verb


def test_verb_without_its_capability_is_not_supported(monkeypatch):
    driver = COLUMNS["`fake`"]()
    assert is_supported(driver, "power.suspend")
    monkeypatch.setattr(type(driver), "capabilities", driver.capabilities - {"suspend"})
    assert not is_supported(driver, "power.suspend")
    assert "| Suspend, resume | yes | – | – | yes | – | – |" in feature_matrix.table()
