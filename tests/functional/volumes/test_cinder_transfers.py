# ruff: noqa: F811 - fixtures of other modules
"""Cinder volumes that are transferred to another project while their attachment is queued."""

from tests.functional.volumes.test_cinder import MEMBER, attach, cinder, ended, outside, server  # noqa: F401 (fixtures)


def test_queued_attach_of_a_volume_transferred_to_another_project_fails(
        admin, member, server, cinder, driver, hold):
    """Check a queued attach, which uses the credentials of Nova: the new project may have changed the volume data."""
    first, volume, held = cinder.new(MEMBER), cinder.new(MEMBER), hold("volumes.attach")
    attach(member, server, first)
    held.wait_until_begun()
    attach(member, server, volume)
    cinder.volumes[volume].project = "buyer"
    held.let_go()
    ended(admin, server, "attach_volume", "Error")
    assert [each["volumeId"] for each in admin.get(f"/servers/{server}/os-volume_attachments")["volumeAttachments"]] \
        == [first]
    assert dict(driver.guest(server).volumes) == {"/dev/vdb": first}
    assert (cinder.volumes[volume].status, cinder.servers_of(volume)) == ("available", [])
