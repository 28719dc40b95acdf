"""Make the classes of etcd's messages and methods from the descriptions in the package etcd3.

The package's generated modules do not work with a current protobuf, so this module reads the descriptors in them as text, and makes the
classes from them. It executes no code of etcd3, and leaves nothing in a global registry.
"""

import ast
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FILES = ("kv", "auth", "rpc")
"""Names of the files. Each refers only to files before it."""
PACKAGES = {"kv": "mvccpb", "auth": "authpb", "rpc": "etcdserverpb"}


INSTALL = "pip install etcd3==0.12.0 grpcio protobuf"


class NotInstalled(ImportError):
    """A package that the controller needs to talk to an etcd is not installed."""


@dataclass(frozen=True, slots=True)
class Method:
    """A method of etcd: its path and the classes of request and response."""

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
    """Return etcd's messages and methods. Raise NotInstalled if a package is missing."""
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
    """Return the descriptor in one of etcd3's generated files. It is the first argument `serialized_pb` in the file."""
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
