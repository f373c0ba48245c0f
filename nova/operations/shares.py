"""Attach a share to a server that is stopped, and detach it. These operations queue behind the running operation.

Access to the share is granted to the server's host before the server has the share, and revoked after the server has
lost it. The guest mounts the share when it starts. A share that could not be attached or detached stays in the server's
list with status "error" and can be detached."""

import msgspec

from nova import exception
from nova.objects.base import Object, new_uuid
from nova.objects.servers import states
from nova.objects.volumes import share as share_types
from nova.objects.volumes.share import Share, ShareMapping
from nova.operations.framework.base import CONDUCTOR, SHARES, NoRequest, Releasing, Step, step
from nova.operations.framework.contexts import Acceptance, Control, HostContext, PrecheckContext
from nova.operations.framework.rules import Rules


class AttachShareRequest(Object, kw_only=True):
    """``tag``: mount tag in the guest; None: the id of the share."""

    share_id: str
    tag: str | None = None


class DetachShareRequest(Object, kw_only=True):
    share_id: str


class AttachShareData(Object, kw_only=True):
    """``polls``: number of waits for another server to release its access."""

    host: str = ""
    share: Share | None = None
    mapping: ShareMapping | None = None
    polls: int = msgspec.field(default=0, name="looks")


class DetachShareData(Object, kw_only=True):
    """``mapping``: the mapping before the detach; ``let_go``: the host has unmounted the share."""

    host: str = ""
    mapping: ShareMapping | None = None
    let_go: bool = False


class _Share(Releasing):
    """Common end of attach and detach: the mapping gets status "error" if the operation fails."""

    def clean_up(self, of: Step, ctl: Control) -> None:
        """Reconcile the accesses with the shares that the server has now."""
        ctl.outside_shares.reconcile()

    def superseded(self, ctl: Control) -> None:
        ctl.shares.become(self.data.mapping, share_types.ERROR)


class AttachShare(_Share):
    name = action = "attach_share"
    rules = Rules(label="create share", vm_states=frozenset({states.STOPPED}), lock=False, beside=True, release=5)
    request_type = AttachShareRequest
    answer_type = ShareMapping
    data_type = AttachShareData

    def prepare(self, precheck: PrecheckContext, request: AttachShareRequest) -> None:
        if self.instance.share(request.share_id) is None:  # accept() refuses a second attachment
            self.data.share = precheck.check_share(request.share_id)

    def accept(self, ctl: Acceptance, request: AttachShareRequest) -> ShareMapping:
        uuid, tag = self.instance.uuid, request.tag or request.share_id
        if self.instance.share(request.share_id) is not None or self.data.share is None:
            raise exception.ShareAlreadyAttached(share_id=request.share_id, instance_uuid=uuid)
        if len(tag) > share_types.LONGEST_TAG:
            raise exception.InvalidInput(reason=f"a tag may have at most {share_types.LONGEST_TAG} characters.")
        if tag in [mapping.tag for mapping in self.instance.shares or ()]:
            raise exception.ShareTagInUse(tag=tag, instance_uuid=uuid)
        if not ctl.host_has_trait(share_types.VIRTIO_FS):
            raise exception.SharesUnsupported(instance_uuid=uuid, trait=share_types.VIRTIO_FS)
        self.data.mapping = ShareMapping(
            uuid=new_uuid(), share_id=request.share_id, tag=tag, protocol=self.data.share.protocol,
            export_location=self.data.share.export_location)
        ctl.shares.add(self.data.mapping)
        return self.data.mapping  # type: ignore[no-any-return]

    @step(CONDUCTOR, event="compute_allow_share", undo="deny", external=SHARES)
    def allow(self, ctl: Control) -> None:
        self.data.polls += 1
        ctl.outside_shares.allow(self.data.host, self.data.polls, self.data.mapping.share_id)

    def deny(self, ctl: Control) -> None:
        ctl.outside_shares.deny(self.data.host, self.data.mapping.share_id)

    def succeeded(self, ctl: Control) -> None:
        ctl.shares.become(self.data.mapping, share_types.INACTIVE)


class DetachShare(_Share):
    name = action = "detach_share"
    rules = Rules(label="delete share", vm_states=frozenset({states.STOPPED, states.ERROR}), lock=False, beside=True,
                  launched=False, release=5)
    request_type = DetachShareRequest
    answer_type = NoRequest
    data_type = DetachShareData

    def accept(self, ctl: Acceptance, request: DetachShareRequest) -> None:
        mapping = self.instance.share(request.share_id)
        if mapping is None:
            raise exception.ShareNotAttached(instance_uuid=self.instance.uuid, share_id=request.share_id)
        # Shares of a server on a failed host may be detached, because servers with shares cannot be evacuated.
        runs = self.instance.runs and ctl.host_up(self.instance.host or "")
        if runs or mapping.status not in (share_types.INACTIVE, share_types.ERROR):
            raise exception.ShareStatusIncorrect(share_id=request.share_id, status=self.instance.status_of(mapping),
                                                 expected=f"{share_types.INACTIVE} or {share_types.ERROR}")
        self.data.mapping = mapping
        ctl.shares.become(mapping, share_types.DETACHING)

    @step("host", event="compute_deny_share", when_down="skip", results=("let_go",))
    def leave(self, host: HostContext) -> None:
        host.disconnect_shares(self.data.mapping)
        host.result(let_go=True)

    @step(CONDUCTOR, event="compute_deny_share", external=SHARES, deferrable=True)
    def deny(self, ctl: Control) -> None:
        ctl.outside_shares.deny("", self.data.mapping.share_id)

    def superseded(self, ctl: Control) -> None:
        """Restore the status of the share, unless the host has already unmounted it."""
        ctl.shares.become(self.data.mapping, share_types.ERROR if self.data.let_go else self.data.mapping.status)

    def succeeded(self, ctl: Control) -> None:
        ctl.shares.remove(self.data.mapping)
