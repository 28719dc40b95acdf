"""Give programs and notebooks `elastic.Client`: the same calls on the laptop and in a cluster.

The official kubernetes package finds the cluster, its certificates and tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from elastic.api.kinds import KINDS, Kind, as_owned
from elastic.client import errors, verbs
from elastic.client.cluster import Cluster, connect
from elastic.client.job import Job
from elastic.client.program import VARIABLE, checked, escaped, program_of
from elastic.client.script_job import MAX_RESTARTS, ScriptOptions, Workers, job_of
from elastic.kube.following import resource_of

START = 'd=$(mktemp -d) && printf %s "$ELASTIC_PROGRAM" > "$d/$0" && exec torchrun "$d/$0" "$@"'
"""As a shell runs it, with the name of the file and its arguments."""
MOST_HINT = 300


class Client:
    """Talks to one cluster: that of `kubeconfig` or $KUBECONFIG, else the laptop cluster if it runs, this pod's, or kubectl's."""

    def __init__(
        self,
        kubeconfig: str | Path | None = None,
        *,
        api: Any = None,
        context: str | None = None,
        namespace: str | None = None,
        data_dir: str | Path | None = None,
        dashboard: str | None = None,
    ) -> None:
        """Choose the cluster.

        `api` is a kubernetes.client.ApiClient, which names the cluster itself. `dashboard` is the address to which a cluster's dashboard is
        forwarded; it knows how far training is. The laptop's is found.
        """
        self._cluster: Cluster = connect(kubeconfig, api=api, context=context, namespace=namespace, data_dir=data_dir, dashboard=dashboard)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread that runs the calls. Handles of jobs cannot be used any more."""
        self._cluster.close()

    def __repr__(self) -> str:
        return f"<Client of {self._cluster.api.configuration.host}, namespace {self.namespace}>"

    def submit(
        self,
        program: Callable[..., Any] | str | Path,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        workers: int | tuple[int, int] | str = 1,
        gpus: int = 0,
        image: str | None = None,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        max_restarts: int = MAX_RESTARTS,
        packages: Sequence[str] = (),
        replace: bool = False,
    ) -> Job:
        """Run a function or a script on `workers` workers: a number, (min, max) or "min:max". Return at once.

        `args` and `kwargs` are the function's, and travel as JSON; a script takes `args` as its words. `image` is needed in a cluster, and
        ignored by the laptop's sandboxes unless it is one of their image folders. A job of the same name that is over is replaced.
        `packages` are installed by pip before the function is called, into the Python that runs it; where pip fails the job does.
        """
        chosen: dict[str, Any] = {
            "packages": packages,
            "gpus": gpus,
            "image": image,
            "name": name,
            "env": env or {},
            "max_restarts": max_restarts,
        }
        made = self._job_object(program, args, kwargs or {}, workers=_workers(workers), **chosen)
        return self.create(made, replace=replace)

    def create(self, job: Mapping[str, Any], *, replace: bool = False) -> Job:
        """Create a job from the content of its YAML."""
        metadata = _metadata(job)
        kind, name, namespace = _kind(str(job.get("kind"))), metadata["name"], metadata.get("namespace")
        if namespace not in (None, self.namespace):
            raise errors.Refused(f"metadata.namespace is {namespace}, and this client is of {self.namespace}; make a Client(namespace=...)")
        self._make_room(Job(self._cluster, kind, name), replace=replace)
        created = self._cluster.ask(
            f"creating {kind.name} {name}", lambda kube: kube.create(resource_of(kind), dict(job), namespace=self.namespace)
        )
        return Job(self._cluster, kind, name, created["metadata"]["uid"])

    def _make_room(self, job: Job, *, replace: bool) -> None:
        try:
            told = job.status
        except errors.NotFound:
            return
        if not (told.is_over or replace):
            raise errors.AlreadyExists(
                f"{job.kind.name} {job.name} is there and {told.state.lower()}; choose another name, or submit with replace=True"
            )
        job.delete()

    def get(self, name: str, kind: str = "PyTorchJob") -> Job:
        of = _kind(kind)
        found = self._cluster.ask(f"{of.title} {name}", lambda kube: verbs.find(kube, of, self.namespace, name))
        return Job(self._cluster, found.kind, name, found.key.uid)

    def jobs(self, kind: str = "PyTorchJob") -> list[Job]:
        """Return all jobs of this kind in the namespace. Jobs of TrainJobs are among the PyTorchJobs."""
        of = _kind(kind)
        listed = self._cluster.ask(
            f"the {of.plural} of {self.namespace}", lambda kube: kube.list(resource_of(of), namespace=self.namespace)
        )
        known = (item["metadata"] for item in listed.items)
        return [Job(self._cluster, as_owned(of, metadata), metadata["name"], metadata["uid"]) for metadata in known]

    @property
    def namespace(self) -> str:
        return self._cluster.namespace

    def _job_object(
        self,
        program: Callable[..., Any] | str | Path,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        workers: Workers,
        gpus: int,
        image: str | None,
        name: str | None,
        env: Mapping[str, str],
        max_restarts: int,
        packages: Sequence[str],
    ) -> dict[str, Any]:
        if not isinstance(args, list | tuple):
            hint = f"; did you mean kwargs={args!r}?" if isinstance(args, Mapping) else f"; did you mean args=[{args!r}]?"
            raise errors.BadProgram(f"args is {args!r}, but must be a list of arguments{hint if len(hint) < MOST_HINT else ''}")
        if image is None and not self._cluster.is_laptop:
            raise errors.BadProgram("image is missing: a cluster runs workers in one; name an image that has Python and torch")
        script, text, words = _script(program, args, kwargs, packages)
        options = ScriptOptions(workers=workers, gpus=gpus, env=env, image=image, name=name, max_restarts=max_restarts)
        made = job_of(script, words, options, working_dir=Path.cwd())
        made["spec"]["runPolicy"]["cleanPodPolicy"] = "None"
        container = made["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
        if not self._cluster.is_laptop:
            del container["workingDir"]
            text = text or checked(script.read_text(), script.name)
        if text:
            container["command"] = ["sh", "-c", START, script.name, *words]
            container.setdefault("env", []).append({"name": VARIABLE, "value": escaped(text)})
        return made


def _script(
    program: Callable[..., Any] | str | Path, args: Sequence[Any], kwargs: Mapping[str, Any], packages: Sequence[str]
) -> tuple[Path, str, list[str]]:
    """Return the program's file, its text if there is no file, and its arguments."""
    if callable(program):
        return Path(f"{getattr(program, '__name__', 'program')}.py"), program_of(program, args, kwargs, packages=packages), []
    if packages:
        raise errors.BadProgram("packages are for a function; install a script's packages in its image, or in the laptop's image folder")
    if kwargs:
        raise errors.BadProgram("a script takes no kwargs; give its words as args=['--epochs', '3']")
    if not isinstance(program, str | Path):
        raise errors.BadProgram(f"program is {program!r}, but must be a function, or the path of a script that ends in .py")
    script = Path(program)
    if script.suffix != ".py" or not script.is_file():
        raise errors.BadProgram(f"{program} is no Python file here; submit a function, or the path of a script that ends in .py")
    return script.resolve(), "", [str(word) for word in args]


def _workers(given: int | tuple[int, int] | str) -> Workers:
    text = ":".join(map(str, given)) if isinstance(given, tuple) else str(given)
    try:
        return Workers.parse(text)
    except ValueError as error:
        raise errors.BadProgram(f"workers: {error}") from error


def _metadata(job: Any) -> Mapping[str, Any]:
    if not isinstance(job, Mapping):
        raise errors.Refused(f"job is {job!r}, but must be a mapping of what its YAML would say: apiVersion, kind, metadata and spec")
    metadata = job.get("metadata")
    if not isinstance(metadata, Mapping) or not isinstance(metadata.get("name"), str):
        raise errors.Refused(f"job: metadata is {metadata!r}, but must be a mapping that names the job: {{'name': 'train'}}")
    return metadata


def _kind(name: str) -> Kind:
    if (kind := KINDS.get(name)) is None:
        raise errors.NotFound(f"there is no kind of job {name!r}; kinds: {', '.join(KINDS)}")
    return kind
