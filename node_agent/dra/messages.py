"""The messages and services between kubelet and a DRA driver.

They are those of `dra/v1/api.proto` and `pluginregistration/v1/api.proto` in the Go module
k8s.io/kubelet, described here in place of generated files: ten messages fit on a page, and a
generated file holds them as bytes that no review can read. Kubernetes never changes a field of a
released version; a new version is a service of another name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

#: What a driver says at its registration that it speaks.
DRA_VERSION = "v1.DRAPlugin"
PLUGIN_TYPE = "DRAPlugin"

_DRA = "k8s.io.kubelet.pkg.apis.dra.v1"
_REGISTRATION = "pluginregistration"
DRA_SERVICE = f"{_DRA}.DRAPlugin"
REGISTRATION_SERVICE = f"{_REGISTRATION}.Registration"

#: Field -> type, in the order of their numbers, which begin at 1. `repeated` and `optional` as in
#: the protos; `map X` is a map from strings to messages X.
_DRA_MESSAGES = {
    "Claim": {"namespace": "string", "uid": "string", "name": "string"},
    "Device": {
        "request_names": "repeated string",
        "pool_name": "string",
        "device_name": "string",
        "cdi_device_ids": "repeated string",
        "share_id": "optional string",
    },
    "NodePrepareResourceResponse": {"devices": "repeated Device", "error": "string"},
    "NodeUnprepareResourceResponse": {"error": "string"},
    "NodePrepareResourcesRequest": {"claims": "repeated Claim"},
    "NodePrepareResourcesResponse": {"claims": "map NodePrepareResourceResponse"},
    "NodeUnprepareResourcesRequest": {"claims": "repeated Claim"},
    "NodeUnprepareResourcesResponse": {"claims": "map NodeUnprepareResourceResponse"},
}
_REGISTRATION_MESSAGES = {
    "PluginInfo": {
        "type": "string",
        "name": "string",
        "endpoint": "string",
        "supported_versions": "repeated string",
    },
    "RegistrationStatus": {"plugin_registered": "bool", "error": "string"},
    "RegistrationStatusResponse": {},
    "InfoRequest": {},
}

#: A message of protobuf and its class, which have no types where they are described at run time.
Message: TypeAlias = Any
MessageClass: TypeAlias = Any

_SCALARS = {"string": FieldDescriptorProto.TYPE_STRING, "bool": FieldDescriptorProto.TYPE_BOOL}


def _add_field(package: str, message: Message, number: int, name: str, kind: str) -> None:
    word, _, rest = kind.partition(" ")
    field = message.field.add(name=name, number=number)
    many = word in ("repeated", "map")
    field.label = FieldDescriptorProto.LABEL_REPEATED if many else field.LABEL_OPTIONAL
    of = rest or word
    if word == "map":
        entry = message.nested_type.add(name=f"{name.title()}Entry")
        entry.options.map_entry = True
        _add_field(package, entry, 1, "key", "string")
        _add_field(package, entry, 2, "value", of)
        of = f"{message.name}.{entry.name}"
    elif word == "optional":
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")
    if of in _SCALARS:
        field.type = _SCALARS[of]
    else:
        field.type = FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".{package}.{of}"


def _classes(package: str, messages: Mapping[str, Mapping[str, str]]) -> dict[str, MessageClass]:
    """Return the class of each message of a package."""
    file = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for number, (field, kind) in enumerate(fields.items(), start=1):
            _add_field(package, message, number, field, kind)
    pool = DescriptorPool()  # of its own: other libraries may describe the same messages
    pool.Add(file)
    return {
        name: GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages
    }


#: The message classes by name.
DRA = _classes(_DRA, _DRA_MESSAGES)
REGISTRATION = _classes(_REGISTRATION, _REGISTRATION_MESSAGES)
