"""One module per kind, behind the protocol in controller.frameworks.protocol."""

from collections.abc import Mapping
from types import MappingProxyType

from controller.frameworks.protocol import Framework
from controller.frameworks.pytorch import PyTorch

FRAMEWORKS: Mapping[str, Framework] = MappingProxyType({"PyTorchJob": PyTorch()})
