# ruff: noqa: F811 - fixtures of other modules
"""Volumes of Cinder that become another project's between the request for them and the moment in which they are had."""

from tests.functional.volumes.test_cinder import MEMBER, attach, cinder, ended, outside, server  # noqa: F401 (fixtures)


def test_queued_attach_of_a_volume_transferred_to_another_project_fails(
        admin, member, server, cinder, driver, hold):
    """A queued attach uses Nova's credentials, and the new project may have written anything to the volume."""
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
