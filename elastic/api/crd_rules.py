"""The rules of elastic.api.rules that the API server can hold by itself, as CEL in the CRD; they guard `kubectl scale` as well.

Each rule has the same words as there. If a key may be written in any case, the rule on /scale looks at the canonical word, because
/scale knows no other.
"""

from __future__ import annotations

from elastic.api.job import MOST_REPLICAS
from elastic.api.kinds import LOWERED, WORKER, Kind
from elastic.api.names import LONGEST
from elastic.api.reader import one_of

Rule = dict[str, str]


def queue_rules() -> list[Rule]:
    return [_rule("self == oldSelf", "spec.runPolicy.schedulingPolicy.queue is immutable")]


def elastic_rules() -> list[Rule]:
    """Return the rules within elasticPolicy."""
    return [
        _rule(
            "!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
            "minReplicas is above maxReplicas",
            f"'minReplicas is ' + {_digits('self.minReplicas')} + ' but maxReplicas is ' + {_digits('self.maxReplicas')}"
            " + '; lower minReplicas or raise maxReplicas'",
        ),
        _rule(
            "!has(self.metrics) || !has(self.scalingPolicy) || has(self.scalingPolicy.through)"
            " || (has(self.scalingPolicy.policy) && self.scalingPolicy.policy == 'hpa')",
            "scalingPolicy and metrics would both set Worker.replicas; remove one, or write scalingPolicy.through: hpa",
        ),
        _rule(
            "!has(self.allowedSizes) || size(self.allowedSizes) == 0 || !has(self.sizeStep)",
            "allowedSizes and sizeStep are both set; remove one",
        ),
        *_scaling_rules(),
        _rule(
            "!has(self.workerLibrary) || self.workerLibrary != 'None' || !has(self.rdzvBackend) || self.rdzvBackend != 'elastic'",
            "workerLibrary is None, but rdzvBackend elastic needs it; use Inject or Image, or rdzvBackend c10d",
        ),
    ]


def _scaling_rules() -> list[Rule]:
    """Return the rules about each scaling policy, and about the source of progress."""
    policy = "self.scalingPolicy.policy"

    def unless(name: str, holds: str, message: str, expression: str | None = None) -> Rule:
        return _rule(f"!has(self.scalingPolicy) || !has({policy}) || {policy} != '{name}' || ({holds})", message, expression)

    steps, samples = "has(self.scalingPolicy.totalSteps)", "has(self.scalingPolicy.totalSamples)"
    pattern, prometheus = "has(self.progress.logPattern)", "has(self.progress.prometheus)"
    amount = "policy deadline needs one of totalSamples and totalSteps"
    source = "progress needs one of logPattern and prometheus"
    return [
        unless(
            "hpa",
            "has(self.metrics)",
            "policy hpa needs elasticPolicy.metrics, by which the HorizontalPodAutoscaler scales; add metrics or choose another policy",
        ),
        unless(
            "deadline",
            "has(self.scalingPolicy.finishBy)",
            "finishBy is missing; policy deadline needs the time by which the work should be done",
        ),
        unless("deadline", f"{steps} != {samples}", amount, _one_of_two(amount, steps, "both are missing")),
        unless(
            "cost",
            "has(self.scalingPolicy.priceLabel)",
            "priceLabel is missing; policy cost needs the label of nodes that holds their price",
        ),
        unless(
            "schedule",
            "has(self.scalingPolicy.windows) && size(self.scalingPolicy.windows) > 0",
            "windows is empty; policy schedule needs at least one window",
        ),
        _rule(f"!has(self.progress) || {pattern} != {prometheus}", source, _one_of_two(source, pattern, "none is set")),
        _rule(
            f"!has(self.progress) || !{pattern} || self.progress.logPattern.contains('{{step}}')",
            "logPattern has 0 times {step}; write it once, where the number of the step is",
        ),
    ]


def _one_of_two(message: str, first_is_set: str, none: str) -> str:
    """Return the message if both are set, or neither."""
    return f"{first_is_set} ? '{message}, and both are set; set one' : '{message}, and {none}; set one'"


def replica_rules(kind: Kind) -> list[Rule]:
    """Return the rules for each replica spec by itself.

    A rule here cannot see who owns the job, so it also takes the container of a job that a TrainJob owns. The webhook checks the owner.
    """
    containers = "has(self.template.spec) && self.template.spec.containers"
    known = dict.fromkeys([kind.container, *(owned.container for owned in LOWERED.values() if owned.name == kind.name)])
    trains = " || ".join(f"c.name == '{name}'" for name in known)
    named = _rule(
        f"{containers}.exists(c, {trains})",
        f'no container is named "{kind.container}"; {kind.a_job} trains in the container of that name, rename the one that trains',
    )
    images = _rule(f"{containers}.all(c, has(c.image) && c.image != '')", "image is missing; name the image of each container")
    return [named, images] if kind.container_required else [images]


def spec_rules(kind: Kind) -> list[Rule]:
    """Return the rules between the parts of spec."""
    return [
        *_worker_rules(kind),
        *_type_rules(kind),
        *_nproc_rules(kind),
        *_mpi_rules(kind),
        _rule(
            "(has(self.runPolicy) && has(self.runPolicy.managedBy) ? self.runPolicy.managedBy : '')"
            " == (has(oldSelf.runPolicy) && has(oldSelf.runPolicy.managedBy) ? oldSelf.runPolicy.managedBy : '')",
            "spec.runPolicy.managedBy is immutable",
        ),
    ]


def job_rules(kind: Kind) -> list[Rule]:
    """Return the rules for the object as a whole: its name becomes part of other names."""
    start = "start with a letter" if kind.has_services else "start with a letter or digit"
    first = "a-z" if kind.has_services else "a-z0-9"
    replicas = f"self.spec.{kind.replica_key}"
    last = f"(has({replicas}[t].replicas) && {replicas}[t].replicas > 0 ? {replicas}[t].replicas - 1 : 0)"
    index = f"1 + size(string({last}))"
    if kind.name == "MPIJob":
        index = f"(t == 'Launcher' ? 0 : {index})"  # the only pod without one
    return [
        *_service_rules(kind),
        _rule(
            f"self.metadata.name.matches('^[{first}]([-a-z0-9]*[a-z0-9])?$')",
            f"name has the wrong form; use lower-case letters, digits and -, {start} and end with a letter or digit",
        ),
        _rule(
            f"{replicas}.all(t, size(self.metadata.name) + 1 + size(t) + {index} <= {LONGEST})",
            f"name makes the name of a pod longer than {LONGEST}; shorten it",
        ),
    ]


def _service_rules(kind: Kind) -> list[Rule]:
    if "mpi_transport" not in kind.options:
        return []
    return [
        _rule(
            "!has(self.spec.mpiTransport) || self.spec.mpiTransport != 'SSH' || self.metadata.name.matches('^[a-z]')",
            "name has the wrong form; with mpiTransport SSH it is a service's name too, start with a letter",
        )
    ]


def _worker_rules(kind: Kind) -> list[Rule]:
    workers = f"self.{kind.replica_key}"
    default = kind.default_replicas.get(WORKER, 1)
    count = f"(has({workers}.{WORKER}.replicas) ? {workers}.{WORKER}.replicas : {default})"
    elastic = f"has(self.elasticPolicy) && '{WORKER}' in {workers}"
    rules = [
        _rule(
            f"!({elastic}) || !has(self.elasticPolicy.maxReplicas) || {count} <= self.elasticPolicy.maxReplicas",
            "Worker.replicas is above maxReplicas",
            _worker_message(
                count, f"' but maxReplicas is ' + {_digits('self.elasticPolicy.maxReplicas')} + '; lower replicas or raise maxReplicas'"
            ),
        ),
        _rule(
            f"!({elastic}) || !has(self.elasticPolicy.minReplicas) || {count} >= self.elasticPolicy.minReplicas || {count} < 0",
            "Worker.replicas is below minReplicas",
            _worker_message(
                count, f"' but minReplicas is ' + {_digits('self.elasticPolicy.minReplicas')} + '; raise replicas or lower minReplicas'"
            ),
        ),
        _rule(
            f"!has(self.elasticPolicy) || {_has_type(kind, WORKER)}",
            "Worker is missing; elasticPolicy needs workers that come and go",
        ),
    ]
    guard = f"'{WORKER}' in {workers}" if kind.least_workers else elastic
    least = max(kind.least_workers, 1)
    # One mistake, one message: of a count below zero the schema speaks, of one below minReplicas the rule above.
    below_its_own = f"({elastic} && has(self.elasticPolicy.minReplicas) && {count} < self.elasticPolicy.minReplicas)"
    rules.append(
        _rule(
            f"!({guard}) || {count} >= {least} || {count} < 0 || {below_its_own}",
            f"{kind.a_job} needs at least {least} Worker",
            _worker_message(count, f"'; {kind.a_job} needs at least {least}'"),
        )
    )
    return rules


def _type_rules(kind: Kind) -> list[Rule]:
    specs = f"self.{kind.replica_key}"
    known = one_of(kind.types)
    rules = [
        _rule(f"size({specs}) > 0", f"{kind.replica_key} is empty; an object with {known} is needed"),
        _rule(f"{specs}.all(k, k.matches({_pattern(kind, *kind.types)}))", f"unknown replica type of {kind.a_job}; use {known}"),
    ]
    for name in kind.required:
        rules.append(_rule(_has_type(kind, name), f"{name} is missing; {kind.a_job} needs exactly one"))
    for name in kind.single:
        rules.append(
            _rule(
                f"!('{name}' in {specs}) || !has({specs}.{name}.replicas) || {specs}.{name}.replicas == 1",
                f"{name}.replicas is not 1",
                f"'{name}.replicas is ' + {_digits(f'{specs}.{name}.replicas')} + '; {kind.a_job} has exactly one {name}, write 1'",
            )
        )
    if kind.at_most_one_of:
        counts = (
            f"('{name}' in {specs} ? (has({specs}.{name}.replicas) ? {specs}.{name}.replicas : 1) : 0)" for name in kind.at_most_one_of
        )
        heads = one_of(kind.at_most_one_of)
        rules.append(
            _rule(f"{' + '.join(counts)} <= 1", f"there are several replicas of {heads}; {kind.a_job} has at most one, lower replicas")
        )
    return rules


def _nproc_rules(kind: Kind) -> list[Rule]:
    if "nproc_per_node" not in kind.options:
        return []
    return [
        _rule(
            "!has(self.nprocPerNode) || !has(self.elasticPolicy) || !has(self.elasticPolicy.nProcPerNode)",
            "nProcPerNode and spec.nprocPerNode are both set; remove nProcPerNode, which is deprecated",
        )
    ]


def _mpi_rules(kind: Kind) -> list[Rule]:
    if "mpi_transport" not in kind.options:
        return []
    return [
        _rule(
            "(has(self.mpiTransport) ? self.mpiTransport : 'Exec') == (has(oldSelf.mpiTransport) ? oldSelf.mpiTransport : 'Exec')",
            "spec.mpiTransport is immutable",
        ),
        _rule(
            "!has(self.sshAuthMountPath) || self.sshAuthMountPath.startsWith('/')",
            "sshAuthMountPath does not begin with /; write the whole path of the .ssh folder",
        ),
    ]


def _has_type(kind: Kind, name: str) -> str:
    return f"self.{kind.replica_key}.exists(k, k.matches({_pattern(kind, name)}))"


def _pattern(kind: Kind, *names: str) -> str:
    return f"'{'(?i)' if kind.any_case else ''}^({'|'.join(names)})$'"


def _worker_message(count: str, rest: str) -> str:
    """Return the message as CEL. CEL has no variables, so map() over a single value replaces one."""
    return f"[{count}].map(n, 'Worker.replicas is ' + {_digits('n')})[0] + {rest}"


def _digits(number: str) -> str:
    """Return a count as text. The API server takes the result of string(number) for boundless and refuses the rule as too costly."""
    digits = "['0', '1', '2', '3', '4', '5', '6', '7', '8', '9']"
    tens = "".join(f"({number} >= {10**p} ? {digits}[{number} / {10**p} % 10] : '') + " for p in range(len(str(MOST_REPLICAS)) - 1, 0, -1))
    return f"({tens}{digits}[{number} % 10])"


def _rule(rule: str, message: str, expression: str | None = None) -> Rule:
    return {"rule": rule, "message": message} | ({"messageExpression": expression} if expression else {})
