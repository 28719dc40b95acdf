"""One module per kind, behind the class in controller.frameworks.protocol."""

from collections.abc import Mapping
from types import MappingProxyType

from elastic_training.controller.frameworks.jax import Jax
from elastic_training.controller.frameworks.mpi import Mpi
from elastic_training.controller.frameworks.mxnet import MxNet
from elastic_training.controller.frameworks.paddle import Paddle
from elastic_training.controller.frameworks.protocol import Framework
from elastic_training.controller.frameworks.pytorch import PyTorch
from elastic_training.controller.frameworks.tensorflow import TensorFlow
from elastic_training.controller.frameworks.xgboost import XGBoost

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
