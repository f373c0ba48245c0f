"""Translation of errors of the REST API."""

from nova.ec2.errors import RestError, translated


def test_refusals_by_policies_are_no_exceeded_limits():
    codes = {403: "AttachmentLimitExceeded", 413: "AddressLimitExceeded"}
    for message, code, status in (
            ("Policy doesn't allow os_compute_api:servers:create to be performed.", "UnauthorizedOperation", 403),
            ("Maximum number of floating IPs exceeded", "AddressLimitExceeded", 400),
            ("A server may have at most 26 disk devices.", "AttachmentLimitExceeded", 400)):
        error = translated(RestError(403, message), codes)
        assert (error.code, error.status) == (code, status)
