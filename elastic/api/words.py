"""Define the closed sets of words that a job may use. Each enum member's value is the word in YAML."""

from __future__ import annotations

import enum

GPU = "nvidia.com/gpu"
"""The resource of GPUs, which a container requests and a node offers."""
LEFT, TAKEN_BACK = "Left", "TakenBack"
"""Outcomes of a disruption."""
IN_WORLD = "elastic-training/in-world"
"""Condition of a worker's pod, and its readiness gate."""
STEP_REPORTED = "StepReported"
"""Reason of that condition if training reported a step in the world."""
HOLDER = "elastic-training/holder"
"""Annotation of a worker's pod: the run of its container and the start of its agent that this condition is about, `3/1732460000-7`."""
WORLD_STANDS = "WorldStands"
"""Reason of that condition if training reports no steps and the world has stood for readyAfterSeconds."""
FAULT = "RendezvousFault: "
"""Beginning of the sentence about a bug in the rendezvous server, in the message of a condition."""
UNFOLLOWED = "The controller cannot follow the rendezvous in etcd, and counts pods"
"""Beginning of a condition's message if the controller does not reach the job's etcd. The reason follows."""
FAILED_FIRST = " First of all "
"""Words before the name of the first failed pod in a job's failure message."""


class RestartPolicy(enum.Enum):
    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"
    EXIT_CODE = "ExitCode"


class RestartScope(enum.Enum):
    """The replicas that start again when one is lost: that one, or all of the job."""

    POD = "Pod"
    GROUP = "Group"


class CleanPodPolicy(enum.Enum):
    ALL = "All"
    RUNNING = "Running"
    NONE = "None"


class RdzvBackend(enum.Enum):
    ELASTIC = "elastic"
    C10D = "c10d"
    ETCD = "etcd"
    ETCD_V2 = "etcd-v2"


class ManagedBy(enum.Enum):
    TRAINING_OPERATOR = "kubeflow.org/training-operator"
    MULTIKUEUE = "kueue.x-k8s.io/multikueue"


class SuccessPolicy(enum.Enum):
    """TFJob: who must finish. The empty word is upstream's default: worker 0."""

    DEFAULT = ""
    ALL_WORKERS = "AllWorkers"


class JobMode(enum.Enum):
    """MXJob: an ordinary training, or a search by a tuner."""

    TRAIN = "MXTrain"
    TUNE = "MXTune"


class MpiTransport(enum.Enum):
    """MPIJob: how the launcher starts processes in workers, through the API server or by ssh."""

    EXEC = "Exec"
    SSH = "SSH"


class MpiImplementation(enum.Enum):
    """MPIJob over ssh: whose variables and whose form of host file the launcher gets."""

    OPEN_MPI = "OpenMPI"
    INTEL = "Intel"
    MPICH = "MPICH"


class LauncherCreation(enum.Enum):
    """MPIJob: when the launcher's pod is made."""

    AT_STARTUP = "AtStartup"
    WAIT_FOR_WORKERS = "WaitForWorkersReady"


class WorkerLibrary(enum.Enum):
    """How `elastic_worker` gets into a worker's container."""

    INJECT = "Inject"
    IMAGE = "Image"
    NONE = "None"


class Stragglers(enum.Enum):
    """The reaction to a rank that the other ranks of a job wait for."""

    IGNORE = "Ignore"
    REPORT = "Report"
    REPLACE = "Replace"


class Through(enum.Enum):
    """The process that carries the scaling policy's decision to /scale."""

    HPA = "hpa"


class Cause(enum.StrEnum):
    """Why a worker ended, or why a world changed."""

    START = "start"
    PLAN = "plan"
    DISRUPTION = "disruption"
    COLLATERAL = "collateral"
    OUT_OF_MEMORY = "outOfMemory"
    HANG = "hang"
    USER = "user"

    @property
    def is_charged(self) -> bool:
        """Whether a restart of this cause counts towards maxRestarts and backoffLimit. Only causes in the job itself do."""
        return self in CHARGED


CHARGED = frozenset({Cause.USER, Cause.OUT_OF_MEMORY, Cause.HANG})


class ConditionType(enum.Enum):
    CREATED = "Created"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUCCEEDED = "Succeeded"
    SUSPENDED = "Suspended"
    FAILED = "Failed"
