"""Machines that offer less: a container, an ordinary user, nothing at all, as a fresh Python finds them."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mmrl_tools.sandbox import LAYERS, SandboxError, isolation, open_doors, run

REPO = Path(__file__).parents[3]


SCRIPT = """
import ctypes, json, os, struct, sys
sys.path.insert(0, {tools!r})
libc = ctypes.CDLL(None, use_errno=True)
def forbid(numbers, prctl=()):
    "An outer filter, as a container has it: these calls are not permitted from here on."
    code = [(0x20, 0, 0, 0)]
    for number in numbers:
        code += [(0x15, 0, 1, number), (6, 0, 0, 0x50001)]
    if prctl:
        code += [(0x15, 0, 3, prctl[0]), (0x20, 0, 0, 16), (0x15, 0, 1, prctl[1]), (6, 0, 0, 0x50001)]
    code = b"".join(struct.pack("<HBBI", *c) for c in [*code, (6, 0, 0, 0x7FFF0000)])
    kept = ctypes.create_string_buffer(code, len(code))
    libc.prctl(38, 1, 0, 0, 0)
    return libc.prctl(22, 2, struct.pack("@HP", len(code) // 8, ctypes.addressof(kept)), 0, 0)
def readable_python():
    "Let other users reach a Python that lies in a folder of root's: in mounts of our own."
    from mmrl_tools.sandbox_child import call, mount, BIND, PRIVATE, REC
    top = "/" + sys.base_prefix.split("/")[1]
    if os.geteuid() or os.stat(top).st_mode & 5 == 5:
        return
    call("unshare", 0x20000)
    mount("none", "/", flags=REC | PRIVATE)
    kept = os.open(sys.base_prefix, os.O_PATH)
    mount("tmpfs", top, "tmpfs", 0, "mode=755")
    os.makedirs(sys.base_prefix)
    mount(f"/proc/self/fd/{{kept}}", sys.base_prefix, flags=BIND)
    os.close(kept)
X86 = os.uname().machine == "x86_64"
UNSHARE, LANDLOCK, PRCTL, SECCOMP = (272, 444, 157, 317) if X86 else (97, 444, 167, 277)
MOUNT = 165 if X86 else 40
{code}
import mmrl_tools.python
from mmrl.rollout import call_tool
from mmrl.rollout.tools import ToolContext
from mmrl.types import ToolCall
from mmrl_tools.sandbox import isolation, open_doors
def ask(code, **settings):
    result = call_tool(ToolCall("python", {{"code": code}}), ToolContext({{}}, settings={{"python": settings}}))
    return [result.text, result.fault and result.fault.kind, result.fault and result.fault.message]
layers = isolation()
print(json.dumps({{
    "layers": layers, "doors": open_doors(layers), "asked": ask("print(6 * 7)"),
    "accepted": ask("print(6 * 7)", accept_no_isolation=True),
    "file": ask("open('/etc/passwd').read()"), "socket": ask("import socket; socket.socket()"),
    "fork": ask("import os; os.fork()"),
    "memory": ask("x = bytearray(4 << 30)", accept_no_isolation=True),
    "loop": ask("while True: pass", accept_no_isolation=True, seconds=1),
    "threads": ask("import threading, time\\nfor _ in range(99): threading.Thread(target=time.sleep, args=(9,), "
                   "daemon=True).start()\\ntime.sleep(5)", accept_no_isolation=True),
    "room": ask("for i in range(99999): open(str(i), 'w').close()", accept_no_isolation=True),
}}))
"""


def on_machine(code: str) -> dict[str, Any]:
    """What a fresh Python finds where `code` has taken something away first."""

    script = SCRIPT.format(code=code, tools=str(REPO / "tools"))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, cwd=REPO)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["accepted"][0] == "42"
    assert found["memory"][1] == found["loop"][1] == found["room"][1] == "policy"
    if found["doors"]:
        assert found["asked"][:2] == ["Error: python failed", "tool"]
        assert "accept_no_isolation: true" in found["asked"][2]
    else:
        assert found["asked"][0] == "42"
        assert all(found[name][1] == "policy" for name in ("file", "socket", "fork", "threads"))
        assert all("Error" in found[name][2] for name in ("file", "socket", "fork"))
    return found


def can_change_mounts() -> bool:
    return os.geteuid() == 0 and "namespaces" in isolation()


def test_a_machine_that_offers_nothing_refuses() -> None:
    """No namespaces, no Landlock, no filters of system calls: all doors stay open, and it says so."""
    found = on_machine("forbid([UNSHARE, 444, SECCOMP], (PRCTL, 22))")
    assert not {"namespaces", "landlock", "seccomp"} & set(found["layers"])
    assert found["doors"] == ["files", "network", "processes"]


@pytest.mark.parametrize(
    ("code", "missing"),
    [
        ("forbid([SECCOMP], (PRCTL, 22))", {"seccomp"}),
        ("forbid([UNSHARE, LANDLOCK])", {"namespaces", "landlock"}),
    ],
    ids=["no filter of calls", "no limits on files"],
)
def test_half_a_boundary_is_none(code: str, missing: set[str]) -> None:
    found = on_machine(code)
    assert not missing & set(found["layers"])
    assert found["doors"]


def test_a_container_without_namespaces() -> None:
    """As Docker is by default: Landlock and the filter are enough, if the kernel has them."""
    found = on_machine("forbid([UNSHARE, MOUNT])")
    assert "namespaces" not in found["layers"]
    assert found["doors"] == ([] if {"landlock", "seccomp"} <= set(isolation()) else ["files", "network", "processes"])


def test_a_container_without_namespaces_whose_python_all_may_read() -> None:
    found = on_machine("readable_python(); forbid([UNSHARE, MOUNT])" if can_change_mounts() else "forbid([UNSHARE])")
    assert "namespaces" not in found["layers"]
    assert ("own_uid" in found["layers"]) == (os.geteuid() == 0 and "own_uid" in isolation())


def test_an_ordinary_user() -> None:
    """Namespaces of users, or Landlock, give the same boundary without privileges."""
    found = on_machine("readable_python(); os.setgid(12345); os.setuid(12345)" if can_change_mounts() else "")
    if can_change_mounts():
        assert "own_uid" not in found["layers"]
        assert "seccomp" in found["layers"]
    assert found["doors"] == list(open_doors(isolation()))


def test_an_ordinary_user_without_namespaces() -> None:
    drop = "readable_python(); os.setgid(12345); os.setuid(12345);" if can_change_mounts() else ""
    found = on_machine(f"{drop} forbid([UNSHARE])")
    assert not {"namespaces"} & set(found["layers"])
    assert bool(found["doors"]) == (not {"landlock", "seccomp"} <= set(isolation()))


def test_this_machine_offers_what_its_kernel_has() -> None:
    """Else a hole in a layer would pass for a machine that has no such layer, on which all other tests ask less."""
    libc = ctypes.CDLL(None)
    landlock = libc.syscall(444, None, ctypes.c_long(0), ctypes.c_long(1)) >= 3
    actions = Path("/proc/sys/kernel/seccomp/actions_avail")
    seccomp = actions.exists() and "errno" in actions.read_text() and os.uname().machine in ("x86_64", "aarch64")
    start = ["unshare", "--mount", "--net", "--pid", "--ipc", "--uts", *["--map-root-user"] * (os.geteuid() != 0)]
    probe = subprocess.run([*start, "--fork", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True)
    namespaces = probe.returncode == 0
    assert landlock <= ("landlock" in isolation())
    assert seccomp <= ("seccomp" in isolation())
    assert namespaces <= ("namespaces" in isolation())
    assert (seccomp and (landlock or namespaces)) == (not open_doors(isolation()))
    assert (seccomp and landlock) <= (not open_doors(("landlock", "seccomp")))


def test_layers_that_do_not_hold_are_an_error() -> None:
    with pytest.raises(SandboxError, match="read_paths"):
        run("1", layers=(), read_paths=["/no/such/place"])
    with pytest.raises(SandboxError, match="cannot name a file"):
        run("1", {"../up": b""}, layers=())
    assert set(isolation()) <= set(LAYERS)
    assert open_doors(()) == ("files", "network", "processes")
