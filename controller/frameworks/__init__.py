"""One module per kind, behind the class in controller.frameworks.protocol."""

from collections.abc import Mapping
from types import MappingProxyType

from controller.frameworks.jax import Jax
from controller.frameworks.mpi import Mpi
from controller.frameworks.mxnet import MxNet
from controller.frameworks.paddle import Paddle
from controller.frameworks.protocol import Framework
from controller.frameworks.pytorch import PyTorch
from controller.frameworks.tensorflow import TensorFlow
from controller.frameworks.xgboost import XGBoost

FRAMEWORKS: Mapping[str, Framework] = MappingProxyType(
    {
        "PyTorchJob": PyTorch(),
        "TFJob": TensorFlow(),
        "MPIJob": Mpi(),
        "XGBoostJob": XGBoost(),
        "PaddleJob": Paddle(),
        "JAXJob": Jax(),
        "MXJob": MxNet(),
    }
)
