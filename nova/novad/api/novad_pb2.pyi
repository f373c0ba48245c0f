from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Empty(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Progress(_message.Message):
    __slots__ = ("component", "message", "changed")
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    component: str
    message: str
    changed: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, component: _Optional[str] = ..., message: _Optional[str] = ..., changed: _Optional[_Iterable[str]] = ...) -> None: ...

class ComponentVersion(_message.Message):
    __slots__ = ("component", "version")
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    component: str
    version: str
    def __init__(self, component: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class ChallengeAnswer(_message.Message):
    __slots__ = ("nonce", "proof")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    nonce: str
    proof: str
    def __init__(self, nonce: _Optional[str] = ..., proof: _Optional[str] = ...) -> None: ...

class DeployRequest(_message.Message):
    __slots__ = ("components",)
    COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    components: _containers.RepeatedCompositeFieldContainer[ComponentVersion]
    def __init__(self, components: _Optional[_Iterable[_Union[ComponentVersion, _Mapping]]] = ...) -> None: ...

class PlanAnswer(_message.Message):
    __slots__ = ("changes",)
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[PlannedChange]
    def __init__(self, changes: _Optional[_Iterable[_Union[PlannedChange, _Mapping]]] = ...) -> None: ...

class PlannedChange(_message.Message):
    __slots__ = ("component", "action", "reference", "before", "backup", "node", "digest", "fetched", "refused")
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    BACKUP_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    FETCHED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    component: str
    action: str
    reference: str
    before: str
    backup: int
    node: str
    digest: str
    fetched: str
    refused: bool
    def __init__(self, component: _Optional[str] = ..., action: _Optional[str] = ..., reference: _Optional[str] = ..., before: _Optional[str] = ..., backup: _Optional[int] = ..., node: _Optional[str] = ..., digest: _Optional[str] = ..., fetched: _Optional[str] = ..., refused: _Optional[bool] = ...) -> None: ...

class PlatformAnswer(_message.Message):
    __slots__ = ("name", "components")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    components: _containers.RepeatedCompositeFieldContainer[ComponentState]
    def __init__(self, name: _Optional[str] = ..., components: _Optional[_Iterable[_Union[ComponentState, _Mapping]]] = ...) -> None: ...

class ComponentState(_message.Message):
    __slots__ = ("name", "version", "state", "image", "digest", "deployment", "started", "health", "node")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    state: str
    image: str
    digest: str
    deployment: int
    started: float
    health: str
    node: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., state: _Optional[str] = ..., image: _Optional[str] = ..., digest: _Optional[str] = ..., deployment: _Optional[int] = ..., started: _Optional[float] = ..., health: _Optional[str] = ..., node: _Optional[str] = ...) -> None: ...

class HistoryRequest(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    def __init__(self, limit: _Optional[int] = ...) -> None: ...

class HistoryAnswer(_message.Message):
    __slots__ = ("deployments",)
    DEPLOYMENTS_FIELD_NUMBER: _ClassVar[int]
    deployments: _containers.RepeatedCompositeFieldContainer[DeploymentEntry]
    def __init__(self, deployments: _Optional[_Iterable[_Union[DeploymentEntry, _Mapping]]] = ...) -> None: ...

class DeploymentEntry(_message.Message):
    __slots__ = ("id", "kind", "state", "started", "ended", "components", "error", "nodes", "control")
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    id: int
    kind: str
    state: str
    started: float
    ended: float
    components: _containers.RepeatedCompositeFieldContainer[ComponentVersion]
    error: str
    nodes: _containers.RepeatedCompositeFieldContainer[NodePart]
    control: str
    def __init__(self, id: _Optional[int] = ..., kind: _Optional[str] = ..., state: _Optional[str] = ..., started: _Optional[float] = ..., ended: _Optional[float] = ..., components: _Optional[_Iterable[_Union[ComponentVersion, _Mapping]]] = ..., error: _Optional[str] = ..., nodes: _Optional[_Iterable[_Union[NodePart, _Mapping]]] = ..., control: _Optional[str] = ...) -> None: ...

class NodePart(_message.Message):
    __slots__ = ("node", "components", "settled")
    NODE_FIELD_NUMBER: _ClassVar[int]
    COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    node: str
    components: str
    settled: bool
    def __init__(self, node: _Optional[str] = ..., components: _Optional[str] = ..., settled: _Optional[bool] = ...) -> None: ...

class RollbackRequest(_message.Message):
    __slots__ = ("components", "to")
    COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    components: _containers.RepeatedScalarFieldContainer[str]
    to: int
    def __init__(self, components: _Optional[_Iterable[str]] = ..., to: _Optional[int] = ...) -> None: ...

class RestartRequest(_message.Message):
    __slots__ = ("components",)
    COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    components: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, components: _Optional[_Iterable[str]] = ...) -> None: ...

class RemoveRequest(_message.Message):
    __slots__ = ("volumes", "secrets")
    VOLUMES_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    volumes: bool
    secrets: bool
    def __init__(self, volumes: _Optional[bool] = ..., secrets: _Optional[bool] = ...) -> None: ...

class ServiceRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ServiceAnswer(_message.Message):
    __slots__ = ("name", "image", "volumes", "env", "cmd", "version_cmd")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    VOLUMES_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    CMD_FIELD_NUMBER: _ClassVar[int]
    VERSION_CMD_FIELD_NUMBER: _ClassVar[int]
    name: str
    image: str
    volumes: _containers.RepeatedCompositeFieldContainer[VolumeEntry]
    env: _containers.ScalarMap[str, str]
    cmd: _containers.RepeatedScalarFieldContainer[str]
    version_cmd: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., image: _Optional[str] = ..., volumes: _Optional[_Iterable[_Union[VolumeEntry, _Mapping]]] = ..., env: _Optional[_Mapping[str, str]] = ..., cmd: _Optional[_Iterable[str]] = ..., version_cmd: _Optional[_Iterable[str]] = ...) -> None: ...

class VolumeEntry(_message.Message):
    __slots__ = ("type", "name", "destination", "options")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    type: str
    name: str
    destination: str
    options: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, type: _Optional[str] = ..., name: _Optional[str] = ..., destination: _Optional[str] = ..., options: _Optional[_Iterable[str]] = ...) -> None: ...

class LogsRequest(_message.Message):
    __slots__ = ("name", "follow", "tail")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    name: str
    follow: bool
    tail: int
    def __init__(self, name: _Optional[str] = ..., follow: _Optional[bool] = ..., tail: _Optional[int] = ...) -> None: ...

class LogLine(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class BackupsRequest(_message.Message):
    __slots__ = ("component",)
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    component: str
    def __init__(self, component: _Optional[str] = ...) -> None: ...

class RestoreRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class BackupsAnswer(_message.Message):
    __slots__ = ("backups",)
    BACKUPS_FIELD_NUMBER: _ClassVar[int]
    backups: _containers.RepeatedCompositeFieldContainer[BackupEntry]
    def __init__(self, backups: _Optional[_Iterable[_Union[BackupEntry, _Mapping]]] = ...) -> None: ...

class BackupEntry(_message.Message):
    __slots__ = ("id", "component", "deployment", "version", "size", "made")
    ID_FIELD_NUMBER: _ClassVar[int]
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    MADE_FIELD_NUMBER: _ClassVar[int]
    id: int
    component: str
    deployment: int
    version: str
    size: int
    made: float
    def __init__(self, id: _Optional[int] = ..., component: _Optional[str] = ..., deployment: _Optional[int] = ..., version: _Optional[str] = ..., size: _Optional[int] = ..., made: _Optional[float] = ...) -> None: ...

class SecretsAnswer(_message.Message):
    __slots__ = ("secrets",)
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    secrets: _containers.RepeatedCompositeFieldContainer[SecretEntry]
    def __init__(self, secrets: _Optional[_Iterable[_Union[SecretEntry, _Mapping]]] = ...) -> None: ...

class SecretEntry(_message.Message):
    __slots__ = ("name", "used_by")
    NAME_FIELD_NUMBER: _ClassVar[int]
    USED_BY_FIELD_NUMBER: _ClassVar[int]
    name: str
    used_by: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., used_by: _Optional[_Iterable[str]] = ...) -> None: ...

class RotateRequest(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class DaemonAnswer(_message.Message):
    __slots__ = ("version", "address", "started", "node", "roles", "runtime", "platform", "id", "steered")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    STEERED_FIELD_NUMBER: _ClassVar[int]
    version: str
    address: str
    started: float
    node: str
    roles: _containers.RepeatedScalarFieldContainer[str]
    runtime: str
    platform: str
    id: str
    steered: bool
    def __init__(self, version: _Optional[str] = ..., address: _Optional[str] = ..., started: _Optional[float] = ..., node: _Optional[str] = ..., roles: _Optional[_Iterable[str]] = ..., runtime: _Optional[str] = ..., platform: _Optional[str] = ..., id: _Optional[str] = ..., steered: _Optional[bool] = ...) -> None: ...

class UpdatesRequest(_message.Message):
    __slots__ = ("ask",)
    ASK_FIELD_NUMBER: _ClassVar[int]
    ask: bool
    def __init__(self, ask: _Optional[bool] = ...) -> None: ...

class UpdatesAnswer(_message.Message):
    __slots__ = ("version", "latest", "trial", "failed", "why")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    TRIAL_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    version: str
    latest: str
    trial: bool
    failed: str
    why: str
    def __init__(self, version: _Optional[str] = ..., latest: _Optional[str] = ..., trial: _Optional[bool] = ..., failed: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class ShareRequest(_message.Message):
    __slots__ = ("share",)
    SHARE_FIELD_NUMBER: _ClassVar[int]
    share: bytes
    def __init__(self, share: _Optional[bytes] = ...) -> None: ...

class SettleRequest(_message.Message):
    __slots__ = ("coordinator", "number", "done")
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    coordinator: str
    number: int
    done: bool
    def __init__(self, coordinator: _Optional[str] = ..., number: _Optional[int] = ..., done: _Optional[bool] = ...) -> None: ...

class NodesAnswer(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeEntry]
    def __init__(self, nodes: _Optional[_Iterable[_Union[NodeEntry, _Mapping]]] = ...) -> None: ...

class NodeEntry(_message.Message):
    __slots__ = ("node", "address", "roles", "state", "error")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    node: str
    address: str
    roles: _containers.RepeatedScalarFieldContainer[str]
    state: str
    error: str
    def __init__(self, node: _Optional[str] = ..., address: _Optional[str] = ..., roles: _Optional[_Iterable[str]] = ..., state: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class NodeRequest(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...

class AcceptRequest(_message.Message):
    __slots__ = ("node", "roles")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    node: str
    roles: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, node: _Optional[str] = ..., roles: _Optional[_Iterable[str]] = ...) -> None: ...

class NodeSecret(_message.Message):
    __slots__ = ("secret",)
    SECRET_FIELD_NUMBER: _ClassVar[int]
    secret: str
    def __init__(self, secret: _Optional[str] = ...) -> None: ...
