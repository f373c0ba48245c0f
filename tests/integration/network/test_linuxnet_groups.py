"""Security group filters on a host, shared by all guests of a group, with namespaces as guests."""

from __future__ import annotations

import logging
import os

import pytest

from nova.conf import CONF
from nova.network.linux import commands
from nova.objects.networks.network import FilterRule, GroupFilter, RuleSet
from tests.integration.network import linuxnet_lab
from tests.integration.network.linuxnet_lab import needs_root, sh, wait
from tests.integration.network.test_linuxnet_flush import flush

pytestmark = [needs_root, pytest.mark.root]

WEB, APP = 5, 6
ANYBODY, MEMBERS = (FilterRule(protocol="tcp", from_port=22, to_port=22, sources=["0.0.0.0/0"]),
                    FilterRule(protocol="tcp", from_port=22, to_port=22, group=APP))


@pytest.fixture(name="told")
def told_fixture(monkeypatch):
    """Return the list of commands passed to nft, by run."""
    runs: list[list[str]] = []
    monkeypatch.setattr("nova.network.linux.commands.nft",
                        lambda lines, real=commands.nft: (runs.append(lines), real(lines)))
    return runs


def rules(*found, version=1, group=WEB):
    return GroupFilter(id=group, rules_version=version, rules=list(found))


def members(*addresses, version=1, group=APP):
    """Return a group filter with members at these addresses of the first network."""
    return GroupFilter(id=group, members_version=version, members=list(addresses),
                       macs=[mac_of(int(address.rpartition(".")[2].rpartition(":")[2])) for address in addresses])


def mac_of(number, net=0):
    return f"fa:16:3e:00:{net:02x}:{number:02x}"


class Net(linuxnet_lab.Net):
    """A network whose interfaces have MAC addresses derived from their numbers."""

    def __init__(self, number=0, **more):
        super().__init__(**more)
        self.number = number

    def vif(self, number, **more):
        return super().vif(number, mac=mac_of(number, self.number), **more)


def booted(lab, server, *filters, groups=(WEB,), version=1):
    lab.driver.plug(server, RuleSet(version=version, groups=list(groups), filters=list(filters)))
    guest = lab.guest(server)
    guest.static()
    return guest


def listening(lab, server, *filters, **more):
    guest = booted(lab, server, *filters, **more)
    lab.listen(guest.ns, "0.0.0.0", 22)
    return guest


def test_changed_group_members_are_admitted_or_refused(lab):
    net = Net()
    listening(lab, net.instance(5), rules(MEMBERS), members("10.77.0.7"))
    peer, other = booted(lab, net.instance(6), groups=()), booted(lab, net.instance(7), groups=())
    assert other.connects("10.77.0.5", 22)
    assert not peer.connects("10.77.0.5", 22, 0.5)
    lab.driver.refresh_groups([members("10.77.0.7", "10.77.0.6", "fd00:77::6", version=2)])
    assert peer.connects("10.77.0.5", 22)
    lab.driver.refresh_groups([members("10.77.0.6", version=3)])
    assert not other.connects("10.77.0.5", 22, 0.5)
    lab.driver.refresh_groups([members("10.77.0.7", "10.77.0.6", version=2)])
    assert not other.connects("10.77.0.5", 22, 0.5), "an older update was applied"


def test_address_of_a_member_on_another_network_is_refused(lab):
    """Networks may have the same addresses, so a member is identified by its interface."""
    for net in (Net(), Net(1)):
        listening(lab, net.instance(5), rules(MEMBERS), members("10.77.0.6"))
        peer = booted(lab, net.instance(6), groups=())
        assert peer.connects("10.77.0.5", 22, 3.0 if net.number == 0 else 0.5) is (net.number == 0)


def test_group_rules_apply_to_all_guests_of_the_group(lab):
    net = Net()
    leaver = net.instance(6)
    one, two = listening(lab, net.instance(5), rules()), listening(lab, leaver)
    assert not one.connects("10.77.0.6", 22, 0.5)
    lab.driver.refresh_groups([rules(ANYBODY, version=3)])
    assert one.connects("10.77.0.6", 22)
    assert two.connects("10.77.0.5", 22)
    # A server that leaves the group, and a server plugged with an outdated order.
    lab.driver.refresh_rules(leaver.uuid, RuleSet(version=4))
    assert not one.connects("10.77.0.6", 22, 0.5)
    assert two.connects("10.77.0.5", 22)
    third = listening(lab, net.instance(7), rules(version=2))
    assert one.connects(third.vif.addresses()[0], 22)


def test_group_update_before_the_first_guest_is_applied(lab):
    net = Net()
    lab.driver.refresh_groups([rules(version=3)])
    assert lab.tables() == []
    listening(lab, net.instance(5), rules(ANYBODY, version=2))
    peer = booted(lab, net.instance(6), groups=())
    assert not peer.connects("10.77.0.5", 22, 0.5)


@pytest.mark.parametrize("change", [members("10.77.0.9", "10.77.0.10", version=2), rules(ANYBODY, version=2)],
                         ids=["member", "rule"])
def test_group_change_is_one_nft_run_independent_of_the_guests(lab, told, change):
    net = Net()
    sizes = []
    for number in (5, 6, 7):
        lab.driver.plug(net.instance(number), RuleSet(version=1, groups=[WEB], filters=[
            rules(MEMBERS, version=number * 10), members("10.77.0.9", version=number * 10)]))
        told.clear()
        each = GroupFilter(id=change.id, rules=change.rules, members=change.members,
                           rules_version=change.rules_version and number * 10 + 1,
                           members_version=change.members_version and number * 10 + 1, macs=change.macs)
        lab.driver.refresh_groups([each])
        [lines] = told
        sizes.append(len("\n".join(lines)))
        lab.driver.refresh_groups([each])
        assert len(told) == 1, "an unchanged group was applied again"
    assert len(set(sizes)) == 1


def test_groups_survive_a_restart_and_a_flush(lab, caplog, monkeypatch):
    net = Net()
    servers = [net.instance(number) for number in (5, 6, 7)]
    guest = listening(lab, servers[0], rules(MEMBERS), members("10.77.0.6"))
    peer, other = (booted(lab, server, groups=()) for server in servers[1:])
    lab.driver.stop()
    flush(lab)
    monkeypatch.setattr("nova.network.linux.driver.WATCH_INTERVAL", 0.1)
    lab.fresh().start(servers)
    for _time in range(2):
        assert peer.connects("10.77.0.5", 22)
        assert not other.connects("10.77.0.5", 22, 0.5)
        assert guest.reaches("10.77.0.1")
        caplog.clear()
        flush(lab)
        assert wait(lambda: "filters of guests are restored" in caplog.text, 20)


def compared(lab):
    """Change the nftables from outside, so that the driver compares all filters."""
    for verb in ("add", "delete"):
        sh("nft", verb, "table", "ip", f"lab_{lab.tag}")
    lab.driver._filters.verify()


def test_plugging_guests_is_not_reported_as_an_external_change(lab, caplog):
    net = Net()
    one, two = net.instance(5), net.instance(6)
    with caplog.at_level(logging.WARNING):
        for server in (one, two):
            lab.driver.plug(server, RuleSet(version=1, groups=[WEB, APP], filters=[
                rules(MEMBERS), rules(ANYBODY, group=APP), members("10.77.0.6")]))
            compared(lab)
        lab.driver.refresh_rules(two.uuid, RuleSet(version=2, groups=[APP]))
        compared(lab)
        lab.driver.unplug(two)
        compared(lab)
        lab.driver.refresh_groups([rules(version=2), members(version=2)])
        compared(lab)
    assert "Another program changed" not in caplog.text
    # A rule added to a group chain by another program is detected.
    sh("nft", "add", "rule", "bridge", f"nova_{lab.tag}", f"group_{WEB}", "accept")
    lab.driver._filters.verify()
    assert "Another program changed" in caplog.text
    chain = sh("nft", "list", "chain", "bridge", f"nova_{lab.tag}", f"group_{WEB}").stdout
    assert "accept" not in chain


class Desk:
    """Answers the polls of hosts and records their known versions."""

    def __init__(self):
        self.known = {}
        self.answer = {}

    def rules(self, _ctx, known, grouped=False):
        assert grouped
        self.known = known
        return self.answer

    def present(self, _ctx, _host, _address, _networks, complete=False):
        return []


def test_host_polls_missing_groups_and_removes_unused_ones(lab, monkeypatch):
    monkeypatch.setattr("nova.network.linux.driver.POLL_INTERVAL", 0.1)
    net, desk = Net(), Desk()
    one, two = net.instance(5), net.instance(6)
    lab.driver.plug(one, RuleSet(version=7, groups=[WEB], filters=[rules(MEMBERS)]))
    lab.driver.plug(two, RuleSet(version=7, groups=[8], filters=[rules(ANYBODY, group=8)]))
    groups = f"{CONF.state_path}/groups"
    assert sorted(os.listdir(groups)) == ["5.json", "6.json", "8.json"]
    lab.driver.connect("h1", desk)
    lab.driver.start([one, two])
    # The members of the group named by the first guest's rules are still unknown.
    assert wait(lambda: desk.known == {one.uuid: 0, two.uuid: 7}), desk.known
    lab.driver.unplug(two)
    back = FilterRule(group=WEB)
    desk.answer = {one.uuid: RuleSet(version=8, groups=[WEB], filters=[rules(back, group=APP), members()])}
    assert wait(lambda: desk.known == {one.uuid: 8} and sorted(os.listdir(groups)) == ["5.json", "6.json"])
    desk.answer = {one.uuid: RuleSet(version=9, groups=[9], filters=[rules(ANYBODY, group=9)])}
    assert wait(lambda: desk.known == {one.uuid: 9} and os.listdir(groups) == ["9.json"]), desk.known
    table = sh("nft", "list", "table", "bridge", f"nova_{lab.tag}").stdout
    assert "group_9" in table
    assert not [name for number in (5, 6, 8) for name in (f"group_{number}", f"members_{number}") if name in table]


def test_rules_recorded_by_the_last_release_apply_until_the_first_poll(lab, monkeypatch):
    monkeypatch.setattr("nova.network.linux.driver.POLL_INTERVAL", 0.1)
    net, desk = Net(), Desk()
    server = net.instance(5)
    lab.driver.plug(server, RuleSet(version=7, rules=[ANYBODY]))
    guest, peer = lab.guest(server), booted(lab, net.instance(6), groups=())
    guest.static()
    lab.listen(guest.ns, "0.0.0.0", 22)
    assert peer.connects("10.77.0.5", 22)
    lab.driver.connect("h1", desk)
    lab.driver.start([server])
    assert wait(lambda: desk.known.get(server.uuid) == 0)
    desk.answer = {server.uuid: RuleSet(version=7, groups=[WEB], filters=[rules()])}
    assert wait(lambda: desk.known.get(server.uuid) == 7)
    assert not peer.connects("10.77.0.5", 22, 0.5)
