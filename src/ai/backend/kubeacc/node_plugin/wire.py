"""Defines the messages and services of the kubelet's node APIs that the plugin uses, as tables of names and field
numbers.

Facts of the wire of deviceplugin v1beta1, pluginregistration v1, dra v1 and podresources v1, as
kubelets 1.34 to 1.36 speak them. Fields that nobody here reads or writes are left out: protobuf skips them. Classes are
made when this module is imported, in a pool of their own for each API, because the packages have generic names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_FIELD = re.compile(r"(?P<name>\w+)=(?P<number>\d+):(?P<repeated>\[\])?(?P<map>\{\})?(?P<type>\w+)(?P<optional>\?)?")
_SCALARS = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "int64": FieldDescriptorProto.TYPE_INT64,
}
_ENUM = "enum"
_OPTIONAL, _REPEATED = FieldDescriptorProto.LABEL_OPTIONAL, FieldDescriptorProto.LABEL_REPEATED


def _messages(package: str, table: Mapping[str, str]) -> SimpleNamespace:
    """Makes the protobuf message classes of a package from a table of message names and fields.

    A field is ``name=number:type``, with ``[]`` for a list, ``{}`` for a map from strings, and ``?`` for presence.
    An ``enum`` is sent as a number.
    """
    file_descriptor = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for message_name, fields in table.items():
        message = file_descriptor.message_type.add(name=message_name)
        for field_spec in fields.split():
            _add_field(message, f".{package}.{message_name}", package, field_spec)
    descriptor_pool = DescriptorPool()
    descriptor_pool.Add(file_descriptor)
    return SimpleNamespace(
        **{name: GetMessageClass(descriptor_pool.FindMessageTypeByName(f"{package}.{name}")) for name in table}
    )


def _add_field(message: DescriptorProto, full_name: str, package: str, field_spec: str) -> None:
    match = _FIELD.fullmatch(field_spec)
    if match is None:
        raise ValueError(f"{field_spec} is no field")
    name, kind = match["name"], match["type"]
    field = message.field.add(name=name, number=int(match["number"]), label=_OPTIONAL)
    if match["map"]:
        map_entry = message.nested_type.add(name="".join(word.title() for word in name.split("_")) + "Entry")
        map_entry.options.map_entry = True
        map_entry.field.add(name="key", number=1, label=_OPTIONAL, type=FieldDescriptorProto.TYPE_STRING)
        _set_type(map_entry.field.add(name="value", number=2, label=_OPTIONAL), package, kind)
        field.label, field.type = _REPEATED, FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f"{full_name}.{map_entry.name}"
        return
    if match["repeated"]:
        field.label = _REPEATED
    _set_type(field, package, kind)
    if match["optional"]:
        message.oneof_decl.add(name=f"_{name}")
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl) - 1


def _set_type(field: FieldDescriptorProto, package: str, kind: str) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    elif kind == _ENUM:  # the same bytes as a number
        field.type = FieldDescriptorProto.TYPE_INT32
    else:
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{package}.{kind}"


device_plugin: Any = _messages(
    "v1beta1",
    {
        "Empty": "",
        "DevicePluginOptions": "pre_start_required=1:bool get_preferred_allocation_available=2:bool",
        "RegisterRequest": "version=1:string endpoint=2:string resource_name=3:string options=4:DevicePluginOptions",
        "NUMANode": "ID=1:int64",
        "TopologyInfo": "nodes=1:[]NUMANode",
        "Device": "ID=1:string health=2:string topology=3:TopologyInfo",
        "ListAndWatchResponse": "devices=1:[]Device",
        "PreStartContainerRequest": "devices_ids=1:[]string",
        "PreStartContainerResponse": "",
        "ContainerPreferredAllocationRequest": (
            "available_deviceIDs=1:[]string must_include_deviceIDs=2:[]string allocation_size=3:int32"
        ),
        "PreferredAllocationRequest": "container_requests=1:[]ContainerPreferredAllocationRequest",
        "ContainerPreferredAllocationResponse": "deviceIDs=1:[]string",
        "PreferredAllocationResponse": "container_responses=1:[]ContainerPreferredAllocationResponse",
        "ContainerAllocateRequest": "devices_ids=1:[]string",
        "AllocateRequest": "container_requests=1:[]ContainerAllocateRequest",
        "CDIDevice": "name=1:string",
        "Mount": "container_path=1:string host_path=2:string read_only=3:bool",
        "DeviceSpec": "container_path=1:string host_path=2:string permissions=3:string",
        "ContainerAllocateResponse": (
            "envs=1:{}string mounts=2:[]Mount devices=3:[]DeviceSpec annotations=4:{}string cdi_devices=5:[]CDIDevice"
        ),
        "AllocateResponse": "container_responses=1:[]ContainerAllocateResponse",
    },
)
registration: Any = _messages(
    "pluginregistration",
    {
        "InfoRequest": "",
        "PluginInfo": "type=1:string name=2:string endpoint=3:string supported_versions=4:[]string",
        "RegistrationStatus": "plugin_registered=1:bool error=2:string",
        "RegistrationStatusResponse": "",
    },
)
dra: Any = _messages(
    "k8s.io.kubelet.pkg.apis.dra.v1",
    {
        "Claim": "namespace=1:string uid=2:string name=3:string",
        "Device": (
            "request_names=1:[]string pool_name=2:string device_name=3:string cdi_device_ids=4:[]string"
            " share_id=5:string?"
        ),
        "NodePrepareResourcesRequest": "claims=1:[]Claim",
        "NodePrepareResourceResponse": "devices=1:[]Device error=2:string",
        "NodePrepareResourcesResponse": "claims=1:{}NodePrepareResourceResponse",
        "NodeUnprepareResourcesRequest": "claims=1:[]Claim",
        "NodeUnprepareResourceResponse": "error=1:string",
        "NodeUnprepareResourcesResponse": "claims=1:{}NodeUnprepareResourceResponse",
    },
)
pod_resources: Any = _messages(
    "v1",
    {
        "ListPodResourcesRequest": "",
        "ContainerDevices": "resource_name=1:string device_ids=2:[]string",
        "ClaimResource": "driver_name=2:string pool_name=3:string device_name=4:string",
        "DynamicResource": "claim_name=2:string claim_namespace=3:string claim_resources=4:[]ClaimResource",
        "ContainerResources": "name=1:string devices=2:[]ContainerDevices dynamic_resources=5:[]DynamicResource",
        "PodResources": "name=1:string namespace=2:string containers=3:[]ContainerResources",
        "ListPodResourcesResponse": "pod_resources=1:[]PodResources",
        "AllocatableResourcesRequest": "",
        "AllocatableResourcesResponse": "devices=1:[]ContainerDevices",
    },
)

Method = tuple[str, Any, Any, bool]
"""Name, request, response, and whether the response is a stream."""
_d, _r, _c, _p = device_plugin, registration, dra, pod_resources
DEVICE_PLUGIN = "v1beta1.DevicePlugin"
DEVICE_PLUGIN_REGISTRATION = "v1beta1.Registration"
PLUGIN_REGISTRATION = "pluginregistration.Registration"
DRA_PLUGIN = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
POD_RESOURCES = "v1.PodResourcesLister"
SERVICES: Mapping[str, tuple[Method, ...]] = {
    DEVICE_PLUGIN: (
        ("GetDevicePluginOptions", _d.Empty, _d.DevicePluginOptions, False),
        ("ListAndWatch", _d.Empty, _d.ListAndWatchResponse, True),
        ("GetPreferredAllocation", _d.PreferredAllocationRequest, _d.PreferredAllocationResponse, False),
        ("Allocate", _d.AllocateRequest, _d.AllocateResponse, False),
        ("PreStartContainer", _d.PreStartContainerRequest, _d.PreStartContainerResponse, False),
    ),
    DEVICE_PLUGIN_REGISTRATION: (("Register", _d.RegisterRequest, _d.Empty, False),),
    PLUGIN_REGISTRATION: (
        ("GetInfo", _r.InfoRequest, _r.PluginInfo, False),
        ("NotifyRegistrationStatus", _r.RegistrationStatus, _r.RegistrationStatusResponse, False),
    ),
    DRA_PLUGIN: (
        ("NodePrepareResources", _c.NodePrepareResourcesRequest, _c.NodePrepareResourcesResponse, False),
        ("NodeUnprepareResources", _c.NodeUnprepareResourcesRequest, _c.NodeUnprepareResourcesResponse, False),
    ),
    POD_RESOURCES: (
        ("List", _p.ListPodResourcesRequest, _p.ListPodResourcesResponse, False),
        ("GetAllocatableResources", _p.AllocatableResourcesRequest, _p.AllocatableResourcesResponse, False),
    ),
}
