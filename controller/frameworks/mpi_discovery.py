"""Let the launcher of an elastic MPIJob find its hosts.

This module knows the hosts, the parts of a pod that let it ask the rendezvous server for the list, and the script that asks. The list in
the script is for a launcher that cannot ask.
"""

import shlex
from collections.abc import Sequence

from elastic.api.book import Leaving
from elastic.api.job import Job, Object
from elastic.api.kinds import WORKER
from elastic.api.words import MpiTransport, WorkerLibrary
from elastic.membership.hosts import Host
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.rendezvous import host_list
from elastic_training.controller.deciding.rendezvous.backend import RendezvousBackend
from elastic_training.controller.deciding.rendezvous.deadlines import waits_for_replacement
from elastic_training.controller.deciding.rendezvous.worker_library import LAUNCHER_TOKEN_KEY, secret_name
from elastic_training.controller.facts.snapshot import Pod
from elastic_training.controller.frameworks.mpi_hosts import LAUNCHER, launcher_name, with_volume, workers
from elastic_training.rendezvous.delivery import CA_KEY
from elastic_training.rendezvous.launcher_delivery import deliver, deliver_to_worker, runs_horovod

VOLUME, FOLDER = "elastic-hosts", "/etc/elastic-training"
TOKEN_FILE = "token"
FIRST_ANSWER_S = 60
"""Seconds for which the script asks again before it falls back, until the first answer."""


def is_chosen(view: JobView) -> bool:
    return view.backend is RendezvousBackend.HOSTS


def address(job: Job, pod: str, domain: str) -> str:
    """Return the name by which the launcher reaches a pod."""
    if job.options.mpi_transport is not MpiTransport.SSH:
        return pod
    return f"{pod}.{job.metadata.name}.{job.metadata.namespace}.svc{'.' + domain if domain else ''}"


def hosts(view: JobView, leaving: Sequence[Leaving]) -> list[Host]:
    """Return every pod in which the launcher may start or have workers."""
    job, going = view.job, {entry.uid for entry in leaving}
    patient = {entry.uid for entry in leaving if waits_for_replacement(view, entry)}
    return [
        Host(
            name=address(job, pod.name, view.snapshot.settings.cluster_domain),
            uid=pod.uid,
            slots=job.options.slots_per_worker,
            is_ready=pod.is_ready or pod.type == LAUNCHER.lower(),
            leaving=pod.is_deleting or pod.uid in going,
            is_local=pod.type == LAUNCHER.lower(),
            when_replaced=pod.uid in patient and not pod.is_deleting,
        )
        for pod in view.snapshot.pods
        if _is_host(job, pod) and host_list.may_have_workers(pod)
    ]


def listed(view: JobView) -> list[str]:
    """Return the pods that the script itself names, by the same rules as far as the controller can see."""
    job, snapshot = view.job, view.snapshot
    known = snapshot.world.hosts if snapshot.world is not None else None
    pods = [pod for pod in snapshot.pods if _is_host(job, pod) and host_list.may_have_workers(pod)]
    if known is not None and known.listed:
        return sorted(pod.name for pod in pods if pod.uid in known.listed)
    wanted = {launcher_name(job), *workers(view)}
    stay = sorted(pod.name for pod in pods if pod.is_active and pod.is_ready and pod.name in wanted)
    leave = sorted(pod.name for pod in pods if pod.name not in wanted)
    return [*stay, *leave[: max(0, job.least_workers - len(stay))]]


def _is_host(job: Job, pod: Pod) -> bool:
    return pod.type == WORKER.lower() or (pod.type == LAUNCHER.lower() and is_launcher_host(job))


def is_launcher_host(job: Job) -> bool:
    if job.options.mpi_transport is MpiTransport.SSH:
        return job.options.run_launcher_as_worker
    return launcher_has_gpu(job)


def launcher_has_gpu(job: Job) -> bool:
    containers = job.replicas[LAUNCHER].template["spec"]["containers"]
    return any("gpu" in name for container in containers for name in ((container.get("resources") or {}).get("limits") or {}))


def with_access(view: JobView, spec: Object) -> None:
    """Give a launcher's pod the token and the CA to ask for the list, and our library, which asks within horovodrun."""
    if not is_chosen(view):
        return
    items = [{"key": LAUNCHER_TOKEN_KEY, "path": TOKEN_FILE}, {"key": CA_KEY, "path": CA_KEY}]
    with_volume(spec, {"name": VOLUME, "secret": {"secretName": secret_name(view.job), "items": items}}, at=FOLDER)
    if _has_library(view.job):
        deliver(spec, job_uid=view.job.metadata.uid, image=view.snapshot.settings.worker_image, hosts_url=hosts_url(view))


def with_library(view: JobView, spec: Object) -> None:
    """Give a worker's pod our library, for programs that use it, if the launcher runs horovodrun."""
    job = view.job
    if is_chosen(view) and _has_library(job) and runs_horovod(job.replicas[LAUNCHER].template["spec"]):
        deliver_to_worker(spec, job_uid=job.metadata.uid, image=view.snapshot.settings.worker_image)


def _has_library(job: Job) -> bool:
    return job.elastic is not None and job.elastic.worker_library is not WorkerLibrary.NONE


def hosts_url(view: JobView) -> str:
    rendezvous = view.snapshot.settings.rendezvous
    assert rendezvous is not None
    return f"https://{rendezvous.endpoint}/v1/jobs/{view.job.metadata.uid}/hosts"


def script(view: JobView) -> str:
    """Return `discover_hosts.sh`, which asks for the list, or prints these names if it cannot ask."""
    job, settings = view.job, view.snapshot.settings
    head = {"url": hosts_url(view), "at": FOLDER}
    head |= {"bound": str(FIRST_ANSWER_S), "job": job.metadata.uid}
    own = (f"#= {address(job, name, settings.cluster_domain)}:{job.options.slots_per_worker}" for name in listed(view))
    lines = ["#!/bin/sh", *(f"{key}={shlex.quote(value)}" for key, value in head.items()), _remote(job), SCRIPT, *own]
    return "\n".join(lines) + "\n"


def _remote(job: Job) -> str:
    """Return the shell function that runs a command in a host, as the launcher does."""
    if job.options.mpi_transport is MpiTransport.SSH:
        options = "-o BatchMode=yes -o PasswordAuthentication=no -o StrictHostKeyChecking=no -o ConnectTimeout=10"
        return f'remote() {{ ssh {options} "$1" true; }}'
    return 'remote() { /etc/mpi/kubexec.sh "$1" true; }'


SCRIPT = r"""
# Prints the hosts that elastic Horovod may use now, a line each. Ends with an error where they are not known: an empty list would say that
# all hosts are gone. Until the first answer it asks again for $bound seconds, then prints the list at the end of this file.
# A child in the background waits for each next list, so that a call each second asks the server nothing while nothing changes. It ends
# once nobody has called for half a minute.
# horovodrun notifies its workers of a change once, and they forget what comes while they start or meet: a host that is added then would
# wait for the next change. So a line without slots, which changes now and then, has it compare its workers with the list again.

by_python='
import ssl, sys, urllib.request as request
folder, url, is_post, limit = sys.argv[1:]
headers = {"Authorization": "Bearer " + open(folder + "/token").read().strip()}
tls = request.HTTPSHandler(context=ssl.create_default_context(cafile=folder + "/ca.crt"))
opener = request.build_opener(request.ProxyHandler({}), tls)
answer = opener.open(request.Request(url, headers=headers, data=b"" if is_post else None), timeout=float(limit))
sys.stdout.write(answer.read(4194304).decode())
'

ask() { # PATH, anything to post, the limit in seconds
  if command -v curl >/dev/null; then
    printf 'header = "Authorization: Bearer %s"\n' "$(cat $at/token)" |
      curl -fsS --max-time ${3:-5} --noproxy '*' --cacert $at/ca.crt ${2:+--data ''} -K - "$url$1"
  elif python=$(command -v python3 || command -v python); then
    "$python" -c "$by_python" "$at" "$url$1" "$2" ${3:-5}
  elif wget --version 2>/dev/null | grep -q GNU; then
    wget -q -O - -T ${3:-5} -t 1 --no-proxy --ca-certificate=$at/ca.crt --header="Authorization: Bearer $(cat $at/token)" \
      ${2:+--post-data=} "$url$1"
  else
    echo "discover_hosts.sh: none of curl, python3 and GNU wget is here to ask for the hosts" >&2
    return 127
  fi
}

# A file that belongs to this very horovodrun: the process above whose command line names it, and its start.
process=$PPID
for _ in 1 2 3 4 5 6; do
  [ -r /proc/$process/stat ] && ! tr '\0' ' ' </proc/$process/cmdline | grep -q 'horovodrun' || break
  set -- $(sed 's/.*) //' /proc/$process/stat)
  [ "$2" -gt 1 ] || break
  process=$2
done
set -- $(sed 's/.*) //' /proc/$process/stat)
state=${TMPDIR:-/tmp}/elastic-hosts-$job-$process-${20}
mkdir -p -m 700 "$state" || exit 1

prove() { # HOST POD_UID: in the background, and at most every other second
  mkdir "$state/$2" 2>/dev/null || return
  ( remote "$1" && ask "/proofs/$2" post
    sleep 2
    rmdir "$state/$2" ) </dev/null >/dev/null 2>&1 &
}

look() { # WHAT TO ASK, the limit in seconds: sets $hosts and $version
  answer=$(ask "?unproven&version$1" '' $2) || return
  version=$(printf '%s\n' "$answer" | sed -n 's/^#@ //p')
  printf '%s\n' "$answer" | sed -n 's/^# //p' | while read -r host uid; do prove "$host" "$uid"; done
  hosts=$(printf '%s\n' "$answer" | grep -v '^#') && [ -n "$hosts" ]
}

put() { # FILE, from the input, as a whole
  cat >"$state/$1.$$" && mv "$state/$1.$$" "$state/$1"
}

age() { # FILE with a time in its first line, in seconds
  then=0
  [ ! -e "$state/$1" ] || read -r then <"$state/$1"
  echo $(($(date +%s) - then))
}

follow() { # The newest list is in $state/list as long as the server says that there is one
  after=
  while [ "$(age called)" -le 30 ]; do
    began=$(date +%s) before=$after
    if look "$after" 20; then
      { date +%s; printf '%s\n' "$hosts"; } | put list
      after=${version:+"&after=$version"}
      # Hosts to prove, a server that names no version, one where too many wait: ask again soon.
      ! printf '%s\n' "$answer" | grep -q '^# ' || after=
      [ $(($(date +%s) - began)) -ge 1 ] || { [ -n "$after" ] && [ "$after" != "$before" ]; } || sleep 1
    else
      rm -f "$state/list"
      after=
      sleep 1
    fi
  done
  rmdir "$state/follower"
}

followed() { # The list of the child in the background, unless it is old
  [ "$(age list)" -le 25 ] && hosts=$(sed 1d "$state/list" 2>/dev/null) && [ -n "$hosts" ]
}

remind() {
  [ "$(age answered)" -lt 10 ] || case $(($(date +%s) / 10 % 2)) in 0) echo localhost:0 ;; *) echo 127.0.0.1:0 ;; esac
}

own_list() {
  hosts=$(sed -n 's/^#= //p' "$0") && [ -n "$hosts" ]
}

[ "$(age called)" -le 60 ] || rmdir "$state/follower" 2>/dev/null
date +%s | put called
if [ -e "$state/answered" ]; then
  followed || look || exit 1
else
  [ -e "$state/fell-back" ] && bound=0
  until=$(($(date +%s) + bound))
  while :; do
    look && date +%s | put answered && break
    [ "$(date +%s)" -ge $until ] && own_list && : >"$state/fell-back" && break
    sleep 1
    date +%s | put called
  done
fi
if mkdir "$state/follower" 2>/dev/null; then
  ( follow ) </dev/null >/dev/null 2>&1 & # in parentheses, or a copy of the output stays open and the caller waits for its end
fi
printf '%s\n' "$hosts"
[ ! -e "$state/answered" ] || remind
exit 0
# What the controller knew when it wrote this file:"""
