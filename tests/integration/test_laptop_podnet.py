"""The preloaded library of sandbox loopback: two pods on one loopback interface do not meet, and each knows its own name and address."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from elastic.local.sandbox import Launch, Mount, SandboxError
from elastic.local.sandbox.loopback import Loopback, compile_library

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(60),
    pytest.mark.skipif(not (shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")), reason="no C compiler"),
]
FIRST, SECOND = "127.251.0.2", "127.251.0.3"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(tmp_path_factory.mktemp("podnet"))


def inside(library: Path, folder: Path, program: str, *, address: str = FIRST) -> str:
    hosts = folder / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n{FIRST} first web web.default.svc\n{SECOND} second web\n")
    env = {
        "PATH": os.environ["PATH"],
        "LD_PRELOAD": str(library),
        "ELASTIC_POD_ADDRESS": address,
        "ELASTIC_POD_HOSTS": str(hosts),
        "ELASTIC_POD_HOSTNAME": "first" if address == FIRST else "second",
        "ELASTIC_POD_MESSAGE_PATH": "/dev/termination-log",
        "ELASTIC_POD_MESSAGE_FILE": str(folder / "message"),
        "ELASTIC_POD_ACCOUNT_PATH": "/var/run/secrets/kubernetes.io/serviceaccount",
        "ELASTIC_POD_ACCOUNT_FOLDER": str(folder / "account"),
    }
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_program_that_listens_everywhere_listens_on_the_pods_address(library: Path, tmp_path: Path) -> None:
    program = "import socket; s = socket.create_server(('', 0)); print(s.getsockname()[0])"
    assert inside(library, tmp_path, program) == FIRST
    assert inside(library, tmp_path, program, address=SECOND) == SECOND


def test_listening_on_both_protocols_at_once_works(library: Path, tmp_path: Path) -> None:
    program = "import socket; s = socket.create_server(('::', 0), family=socket.AF_INET6, dualstack_ipv6=True); print(s.getsockname()[0])"
    assert inside(library, tmp_path, program) == f"::ffff:{FIRST}"


def test_a_peer_sees_where_a_connection_comes_from(library: Path, tmp_path: Path) -> None:
    program = (
        "import socket; s = socket.create_server(('', 0)); port = s.getsockname()[1]\n"
        "c = socket.create_connection(('127.0.0.1', port)); a, peer = s.accept(); print(peer[0], c.getpeername()[0])"
    )
    assert inside(library, tmp_path, program) == f"{FIRST} {FIRST}"


def test_names_lead_to_every_address_that_the_hosts_file_gives_them(library: Path, tmp_path: Path) -> None:
    program = (
        "import socket; print(socket.gethostname(), socket.gethostbyname('second'), "
        "*(entry[4][0] for entry in socket.getaddrinfo('web', 80, type=socket.SOCK_STREAM)))"
    )
    assert inside(library, tmp_path, program) == f"first {SECOND} {FIRST} {SECOND}"


def test_the_termination_message_is_the_pods_own(library: Path, tmp_path: Path) -> None:
    inside(library, tmp_path, "open('/dev/termination-log', 'w').write('said')")
    assert (tmp_path / "message").read_text() == "said"


def test_the_service_account_is_the_pods_own_and_nothing_else(library: Path, tmp_path: Path) -> None:
    (tmp_path / "account").mkdir()
    (tmp_path / "account/token").write_text("mine")
    program = (
        "import os; from pathlib import Path; at = Path('/var/run/secrets/kubernetes.io/serviceaccount'); "
        "print((at / 'token').read_text(), at.is_dir(), (at / 'token').is_file(), os.access(at / 'token', os.R_OK), os.listdir(at), "
        "(at / 'ca.crt').exists(), Path(f'{at}s/token').exists())"
    )
    assert inside(library, tmp_path, program) == "mine True True True ['token'] False False"


def test_interfaces_are_those_of_a_pod(library: Path, tmp_path: Path) -> None:
    program = (
        "import ctypes\n"
        "class A(ctypes.Structure): pass\n"
        "A._fields_ = [('next', ctypes.POINTER(A)), ('name', ctypes.c_char_p)]\n"
        "first = ctypes.POINTER(A)(); libc = ctypes.CDLL(None); libc.getifaddrs(ctypes.byref(first)); names = []; at = first\n"
        "while at: names.append(at.contents.name.decode()); at = at.contents.next\n"
        "libc.freeifaddrs(first); print(*names)"
    )
    assert inside(library, tmp_path, program) == "lo eth0"


def test_links_of_the_machine_are_never_touched_and_those_of_pods_go_with_the_last_of_them(tmp_path: Path) -> None:
    theirs, wanted, claim = tmp_path / "theirs", tmp_path / "deep/data", tmp_path / "claims/ns/shared"
    theirs.symlink_to(tmp_path / "nowhere")
    claim.mkdir(parents=True)
    sandbox = Loopback(tmp_path)
    try:
        with pytest.raises(SandboxError, match="exists on this machine"):
            sandbox.check(launch("a", Mount(str(claim), str(theirs))))
        assert theirs.is_symlink()
        for pod in ("a", "b"):
            sandbox.check(launch(pod, Mount(str(claim), str(wanted))))
        sandbox.destroy("a")
        assert wanted.resolve() == claim
        with pytest.raises(SandboxError, match="in use by another pod"):
            sandbox.check(launch("c", Mount(str(tmp_path), str(wanted))))
        sandbox.destroy("b")
        assert not wanted.parent.exists()
    finally:
        sandbox.close()


def launch(pod: str, mount: Mount) -> Launch:
    return Launch(id=pod, pod=pod, argv=["true"], env={}, cwd="/", log="", record="", mounts=[mount])
