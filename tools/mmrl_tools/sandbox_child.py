"""What runs in a sandbox: a script that closes doors behind itself, runs the code, and reports. See `sandbox.py`.

It is started by path, with the standard library only, and reads its job from the file at descriptor 0: a line of JSON,
then the bytes of the files for the scratch folder. Its report goes to the descriptor named on the command line:
"ready" when all layers are closed, a line of JSON, then pixels. What runs the code is in `sandbox_code.py`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import runpy
import signal
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NEW_NAMESPACES = 0x20000 | 0x4000000 | 0x8000000 | 0x20000000 | 0x40000000  # mount, UTS, IPC, PID, network
NEW_USER = 0x10000000
RDONLY, NOSUID, NODEV, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
ROOM = "/scratch"  # the scratch folder in namespaces

libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: Any) -> int:
    """A function of the C library that gives a negative number when it fails. Raises OSError."""
    # integers as 64 bits: `syscall` and `prctl` take varying arguments
    ready = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result: int = getattr(libc, name)(*ready)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


# --- the layers -------------------------------------------------------------------------------------------------------


def enter_namespaces(job: Mapping[str, Any]) -> None:
    """Be alone: no network, no other processes, and a file system of the readable paths and an empty scratch folder.
    Returns in a new process; the one that called waits for it and ends as it does."""
    user, group = os.geteuid(), os.getegid()
    try:
        call("unshare", NEW_NAMESPACES)
    except PermissionError:  # no right to do so: as the owner of a namespace of users there is
        call("unshare", NEW_NAMESPACES | NEW_USER)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    new_root(job)
    if child := os.fork():
        supervise(child, job["parent"])
    call("prctl", 1, signal.SIGKILL, 0, 0, 0)


def new_root(job: Mapping[str, Any]) -> None:
    """Make a file system in memory out of `paths` (read only), `links`, /dev/null and a bounded scratch folder."""
    mount("none", "/", flags=REC | PRIVATE)
    top = job["scratch"]
    mount("tmpfs", top, "tmpfs", NOSUID | NODEV, "size=1m,mode=755")
    for path in ["/dev/null", *job["paths"]]:
        place = Path(top + path)
        if os.path.isdir(path):
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        mount(path, str(place), flags=BIND | REC)
        if path != "/dev/null":
            read_only(str(place))
    for path, target in job["links"]:
        Path(top + path).parent.mkdir(parents=True, exist_ok=True)
        os.symlink(target, top + path)
    os.mkdir(top + ROOM)
    size = f"size={job['scratch_bytes']},nr_inodes={job['files']},mode=700"
    mount("tmpfs", top + ROOM, "tmpfs", NOSUID | NODEV, size)
    mount("none", top, flags=REMOUNT | BIND | RDONLY | NOSUID | NODEV)
    os.chdir(top)
    call("syscall", {"x86_64": 155, "aarch64": 41}[os.uname().machine], b".", b".")  # pivot_root, the old one on top
    call("umount2", b".", 2)  # ... and away, with all that was open through it
    os.chdir("/")


def mount(source: str, target: str, kind: str = "none", flags: int = 0, data: str = "") -> None:
    call("mount", source.encode(), target.encode(), kind.encode(), flags, data.encode())


def read_only(path: str) -> None:
    """Close a bind mount and all mounts under it to writing. Before Linux 5.12 only its top."""
    closed = struct.pack("<QQQQ", RDONLY | NOSUID | NODEV, 0, 0, 0)
    try:
        call("syscall", 442, -100, path.encode(), 0x8000, closed, len(closed))  # mount_setattr, recursive
    except OSError:
        kept = os.statvfs(path).f_flag & 0xC0F  # in a namespace of users what was closed has to stay so
        mount("none", path, flags=REMOUNT | BIND | RDONLY | NOSUID | NODEV | kept)


def supervise(child: int, parent: int) -> None:
    """Wait for the process in the namespaces and end as it does (128 + signal). SIGTERM, which also comes when the
    trainer `parent` dies, kills it first."""
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
    call("prctl", 1, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(child, signal.SIGKILL)
    os.closerange(0, max(256, int(sys.argv[1]) + 1))  # the ends of streams are seen when the child closes them
    _, status = os.waitpid(child, 0)
    os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def limit(job: Mapping[str, Any]) -> None:
    """The limits that the kernel keeps for each process. None of them can be raised again."""
    bounds = {
        "AS": job["memory"],
        "CPU": job["cpu"],
        "FSIZE": job["scratch_bytes"],
        "NOFILE": 64,
        "CORE": 0,
        "MEMLOCK": 0,
        "MSGQUEUE": 0,
    }
    if {"namespaces", "own_uid"} & set(job["layers"]):  # it counts by user: not where others are the same one
        bounds["NPROC"] = job["threads"] + 1
    for name, value in bounds.items():
        number = getattr(resource, f"RLIMIT_{name}", None)
        if number is not None:
            hard = resource.getrlimit(number)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(number, (value, value))


def drop(uid: int | None, parent: int) -> None:
    """Become user `uid`, whom nothing belongs to, give up every privilege for good, and end with the trainer."""
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    call("capset", struct.pack("<Ii", 0x20080522, 0), bytes(24))
    call("prctl", 38, 1, 0, 0, 0)  # no new privileges
    call("prctl", 4, 0, 0, 0, 0)  # not dumpable: no core file, nobody of the same user looks in
    call("prctl", 1, signal.SIGKILL, 0, 0, 0)  # after the user, since changing that would undo it
    if os.getppid() not in (parent, 0):  # 0: what waits outside of the namespaces
        os._exit(4)


def landlock(paths: list[str], room: str) -> None:
    """Reach files under `paths` for reading and under `room` for everything but special files, and no others; no TCP,
    no signals and no abstract sockets beyond this process. Raises OSError before Linux 6.2 (version 3)."""
    version = call("syscall", 444, None, 0, 1)
    if version < 3:
        raise OSError(f"landlock has version {version}: truncating files is only covered from 3 on")
    handled = 0x7FFF | (0x8000 if version >= 5 else 0)
    rules = struct.pack("<QQQ", handled, 3, 3)[: 24 if version >= 6 else 16 if version >= 4 else 8]
    ruleset = call("syscall", 444, rules, len(rules), 0)
    read, write = 0x4 | 0x8, 0x2 | 0x4 | 0x8 | 0x10 | 0x20 | 0x80 | 0x100 | 0x1000 | 0x2000 | 0x4000
    for path, rights in [*((p, read) for p in paths), ("/dev/null", 0x6), (room, write)]:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        if not os.path.isdir(path):
            rights &= 0x6
        call("syscall", 445, ruleset, 1, struct.pack("<Qi", rights, place), 0)
        os.close(place)
    call("syscall", 446, ruleset, 0)
    os.close(ruleset)


def seccomp(program: bytes) -> None:
    """Allow the system calls of `program` (see `sandbox_filter.py`) to this process from now on."""
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    call("prctl", 22, 2, header, 0, 0)


def enclose(job: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    """Apply the layers of the job, in the order in which none takes away what a later one needs, and put its files
    into the scratch folder, which becomes the working directory."""
    layers, room = job["layers"], job["scratch"]
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # when memory runs out, this goes first
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    if "namespaces" in layers:
        enter_namespaces(job)
        room = ROOM
    os.umask(0o077)
    uid = job["uid"] if "own_uid" in layers else None
    if uid is not None:
        os.chown(room, uid, uid)
    limit(job)
    if sys.platform == "linux":
        drop(uid, job["parent"])
    os.chdir(room)
    for name, data in files.items():
        Path(name).write_bytes(data)
    os.mkdir("out")
    os.environ.update(HOME=room, TMPDIR=room)
    if "landlock" in layers:
        landlock(job["paths"], room)
    if "seccomp" in layers:
        seccomp(bytes.fromhex(job["filter"]))


def main() -> None:
    report = int(sys.argv[1])
    with open(0, "rb", closefd=False) as source:
        job = json.loads(source.readline())
        files = {name: source.read(size) for name, size in job["inputs"]}
    inside = runpy.run_path(str(Path(__file__).with_name("sandbox_code.py")))
    try:
        enclose(job, files)
    except Exception as error:
        os.write(report, f"{type(error).__name__}: {error}".encode())
        os._exit(3)
    os.write(report, b"ready\n")  # before the code runs, which could otherwise claim that nothing was set up
    files.clear()
    sys.path[:] = job["sys_path"]
    sys.argv[:] = ["<code>"]
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    head, pixels = inside["run"](job)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # the code may have closed or replaced it
            continue
    with open(report, "wb") as out:
        out.write(json.dumps(head).encode() + b"\n")
        out.writelines(pixels)
    os._exit(0)


if __name__ == "__main__":
    main()
