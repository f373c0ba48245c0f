"""Change password: set the administrator's password in a running guest through the guest agent."""

import msgspec

from nova import exception
from nova.objects.base import Object
from nova.objects.servers import states
from nova.objects.servers.guest import password_items
from nova.operations.framework.base import NoData, Operation, step
from nova.operations.framework.contexts import Acceptance, Control, HostContext
from nova.operations.framework.rules import Rules

_DEADLINE = 120.0  # seconds after which the step fails: a guest agent answers within seconds or not at all


class ChangePasswordRequest(Object, kw_only=True):
    admin_pass: str


class ChangePasswordData(NoData, kw_only=True):
    """``encrypted_password``: the password encrypted with the public key of the server; "" if there is no such key."""

    encrypted_password: str = msgspec.field(default="", name="sealed")


class ChangePassword(Operation):
    name, action = "change_password", "changePassword"
    rules = Rules(label="changePassword", vm_states=frozenset({states.ACTIVE}), release=3)
    request_type = ChangePasswordRequest
    data_type = ChangePasswordData
    task_state = states.UPDATING_PASSWORD

    def accept(self, ctl: Acceptance, request: ChangePasswordRequest) -> None:
        ctl.keep_secret(request.admin_pass)
        self.data.encrypted_password = ctl.encrypted_for_user(request.admin_pass)

    @step("host", event="compute_set_admin_password", task_state=states.UPDATING_PASSWORD, deadline=_DEADLINE)
    def change(self, host: HostContext) -> None:
        password = host.instance.admin_pass
        if password is None:
            # Fail instead of setting an empty password.
            raise exception.InstancePasswordSetFailed(
                instance=host.instance.uuid, reason="the stored new password cannot be decrypted")
        host.driver.guests.set_password(host.instance, password)

    def succeeded(self, ctl: Control) -> None:
        super().succeeded(ctl)
        if self.data.encrypted_password:
            # The API os-server-password returns this password, like a password that the guest posts.
            ctl.set_items(password_items(self.data.encrypted_password))
