"""etcd's messages and methods as the package etcd3 describes them.

Its generated modules cannot be imported beside a current protobuf, so the descriptors in them are read, as text, and the classes are made
from these. Nothing of etcd3 is executed or left in a global registry.
"""

import ast
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FILES = ("kv", "auth", "rpc")
"""In the order in which they refer to each other."""
PACKAGES = {"kv": "mvccpb", "auth": "authpb", "rpc": "etcdserverpb"}


INSTALL = "pip install etcd3==0.12.0 grpcio protobuf"


class NotInstalled(ImportError):
    """What the controller needs to talk to an etcd is not there."""


@dataclass(frozen=True, slots=True)
class Method:
    """One method of etcd: its path and the classes of request and response."""

    path: str
    request: Any
    response: Any


@dataclass(frozen=True, slots=True)
class Etcd3:
    """Classes of messages by name, such as `PutRequest`; methods by service and name, such as `KV/Put`."""

    messages: Mapping[str, Any]
    methods: Mapping[str, Method]


@cache
def etcd3() -> Etcd3:
    """Raises NotInstalled."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise NotInstalled(f"the package {error.name} is not installed: {INSTALL}") from error
    pool = descriptor_pool.DescriptorPool()
    for name in FILES:
        pool.Add(descriptor_pb2.FileDescriptorProto.FromString(_described(name)))
    made: dict[str, Any] = {}
    methods: dict[str, Method] = {}
    for name in FILES:
        file = pool.FindFileByName(f"{name}.proto")
        for word, message in file.message_types_by_name.items():
            made[word] = message_factory.GetMessageClass(message)
        for service in file.services_by_name.values():
            for method in service.methods:
                kinds = [message_factory.GetMessageClass(kind) for kind in (method.input_type, method.output_type)]
                methods[f"{service.name}/{method.name}"] = Method(f"/{service.full_name}/{method.name}", *kinds)
    return Etcd3(made, methods)


def _described(name: str) -> bytes:
    """The descriptor in one of etcd3's generated files: an argument `serialized_pb` of the first call in it."""
    found = importlib.util.find_spec("etcd3")
    folders = found.submodule_search_locations if found is not None else None
    if not folders:
        raise NotInstalled(f"the package etcd3 is not installed: {INSTALL}")
    tree = ast.parse((Path(folders[0]) / "etcdrpc" / f"{name}_pb2.py").read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "serialized_pb":
            for inner in ast.walk(node.value):
                if isinstance(inner, ast.Constant) and isinstance(inner.value, str | bytes):
                    return inner.value if isinstance(inner.value, bytes) else inner.value.encode("latin1")
    raise NotInstalled(f"the installed etcd3 does not describe {name}.proto; install etcd3 0.12")
