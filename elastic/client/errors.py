"""Name the errors of the verbs of jobs, which programs that use `elastic.Client` catch. Each one says what to do and keeps its cause."""

from __future__ import annotations


class ElasticError(Exception):
    """The base of them all."""


class NoCluster(ElasticError):
    """No cluster was named and none is found, or the kubeconfig cannot be used."""


class Unreachable(ElasticError):
    """The API server cannot be reached, or did not answer in time."""


class Refused(ElasticError):
    """The API server or the webhook refused the request; the text says why."""


class Forbidden(Refused):
    """The user of the kubeconfig may not do this."""


class NotFound(Refused):
    """There is no such job, namespace or kind."""


class OutOfBounds(Refused):
    """The spec of the job does not allow this number of workers."""


class AlreadyExists(Refused):
    """A job of this name exists and has not finished."""


class BadProgram(ElasticError, ValueError):
    """The function or script cannot be sent to the workers."""


class JobFailed(ElasticError):
    """The job failed or was deleted; the text names the first worker that failed and its error."""

    def __init__(self, message: str, *, name: str) -> None:
        super().__init__(message)
        self.name = name


class NoResult(ElasticError):
    """The job succeeded, and what its function returned cannot be read."""


class TimedOut(ElasticError, TimeoutError):
    """The wait has taken too long. The job continues."""
