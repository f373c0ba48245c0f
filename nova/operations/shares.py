"""Giving a server a share, and taking it away: while it is off, beside whatever else is done to it.

The share is opened for the server's host before the server has it, and closed after it has it no longer. Its guest gets
it when it is started. One that could not be given, or taken away, stays in the list of the server as an error, and can
be taken away.
"""

from __future__ import annotations

from nova import exception
from nova.objects import share as shares
from nova.objects import states
from nova.objects.action import Failure
from nova.objects.base import Object, new_uuid
from nova.objects.share import Share, ShareMapping
from nova.operations.base import CONDUCTOR, SHARES, NoRequest, Operation, Rules, Step, step
from nova.operations.contexts import Acceptance, Control, Desk, Host


class AttachShareRequest(Object, kw_only=True):
    """``tag``: by which the guest mounts the share; None: its id."""

    share_id: str
    tag: str | None = None


class DetachShareRequest(Object, kw_only=True):
    share_id: str


class AttachShareData(Object, kw_only=True):
    """``looks``: how often another server's access was waited for."""

    host: str = ""
    share: Share | None = None
    mapping: ShareMapping | None = None
    looks: int = 0


class DetachShareData(Object, kw_only=True):
    """``mapping``: as it was before; ``let_go``: the host does not use it any more."""

    host: str = ""
    mapping: ShareMapping | None = None
    let_go: bool = False


class _Share(Operation):
    """What both share: the mapping of their data, and what becomes of it when they are not done."""

    def take_back(self, of: Step, ctl: Control) -> None:
        """What the server has by now is kept, whoever gave it."""
        ctl.outside_shares.settle()

    def failed(self, ctl: Control, failure: Failure) -> None:
        super().failed(ctl, failure)
        self.superseded(ctl)

    def superseded(self, ctl: Control) -> None:
        ctl.shares.become(self.data.mapping, shares.ERROR)


class AttachShare(_Share):
    name = action = "attach_share"
    rules = Rules(label="create share", vm_states=frozenset({states.STOPPED}), lock=False, beside=True, release=5)
    request_type = AttachShareRequest
    answer_type = ShareMapping
    data_type = AttachShareData

    def prepare(self, desk: Desk, request: AttachShareRequest) -> None:
        if self.instance.share(request.share_id) is None:  # else the request is refused anyway
            self.data.share = desk.check_share(request.share_id)

    def accept(self, ctl: Acceptance, request: AttachShareRequest) -> ShareMapping:
        uuid, tag = self.instance.uuid, request.tag or request.share_id
        if self.instance.share(request.share_id) is not None or self.data.share is None:
            raise exception.ShareAlreadyAttached(share_id=request.share_id, instance_uuid=uuid)
        if len(tag) > shares.LONGEST_TAG:
            raise exception.InvalidInput(reason=f"a tag may have at most {shares.LONGEST_TAG} characters.")
        if tag in [mapping.tag for mapping in self.instance.shares or ()]:
            raise exception.ShareTagInUse(tag=tag, instance_uuid=uuid)
        if not ctl.host_has_trait(shares.VIRTIO_FS):
            raise exception.SharesUnsupported(instance_uuid=uuid, trait=shares.VIRTIO_FS)
        self.data.mapping = ShareMapping(
            uuid=new_uuid(), share_id=request.share_id, tag=tag, protocol=self.data.share.protocol,
            export_location=self.data.share.export_location)
        ctl.shares.add(self.data.mapping)
        return self.data.mapping  # type: ignore[no-any-return]

    @step(CONDUCTOR, event="compute_allow_share", undo="deny", external=SHARES)
    def allow(self, ctl: Control) -> None:
        self.data.looks += 1
        ctl.outside_shares.allow(self.data.host, self.data.looks, self.data.mapping.share_id)

    def deny(self, ctl: Control) -> None:
        ctl.outside_shares.deny(self.data.host, self.data.mapping.share_id)

    def succeeded(self, ctl: Control) -> None:
        ctl.shares.become(self.data.mapping, shares.INACTIVE)


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
        # Of a host that is down nobody knows whether the guest runs: without its shares it may go on elsewhere.
        runs = self.instance.runs and ctl.host_up(self.instance.host or "")
        if runs or mapping.status not in (shares.INACTIVE, shares.ERROR):
            raise exception.ShareStatusIncorrect(
                share_id=request.share_id, status=self.instance.status_of(mapping),
                expected=f"{shares.INACTIVE} or {shares.ERROR}")
        self.data.mapping = mapping
        ctl.shares.become(mapping, shares.DETACHING)

    @step("host", event="compute_deny_share", when_down="skip", results=("let_go",))
    def leave(self, host: Host) -> None:
        host.disconnect_shares(self.data.mapping)
        host.result(let_go=True)

    @step(CONDUCTOR, event="compute_deny_share", external=SHARES, owed=True)
    def deny(self, ctl: Control) -> None:
        ctl.outside_shares.deny("", self.data.mapping.share_id)

    def superseded(self, ctl: Control) -> None:
        """Before the access is touched the server has it as it had it."""
        ctl.shares.become(self.data.mapping, shares.ERROR if self.data.let_go else self.data.mapping.status)

    def succeeded(self, ctl: Control) -> None:
        ctl.shares.remove(self.data.mapping)
