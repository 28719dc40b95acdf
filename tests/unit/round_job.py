"""Name one job and one moment for tests of the controller's rounds."""

from datetime import UTC, datetime

from elastic.kube.resources import Object
from elastic_training.controller.facts.keys import Key

KEY = Key("PyTorchJob", "team", "train")
JOB: Object = {
    "kind": "PyTorchJob",
    "metadata": {"name": "train", "namespace": "team", "uid": "u", "resourceVersion": "1", "generation": 1},
}
NOW = datetime(2026, 1, 1, tzinfo=UTC)
