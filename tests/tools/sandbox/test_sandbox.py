"""Files, network and processes outside of a sandbox: each attack is run for real, behind each way to isolate."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from mmrl_tools.sandbox import Bounds, run

REPO = Path(__file__).parents[3]
X86 = os.uname().machine == "x86_64"

# --- files ------------------------------------------------------------------------------------------------------------

READING = """
way = "/".join([*sys.path, "/etc/ld.so.cache", "/usr/lib64", "/dev/null", os.getcwd()]).split("/")
def look(path):  # the folders above readable paths are there, with nothing else in them
    if not set(os.listdir(path)) - set(way):
        raise FileNotFoundError
for path in ["/etc/passwd", "/etc/shadow", "/etc/hostname", "../../../../../../etc/passwd", REPO + "/pyproject.toml",
             REPO + "/tools/mmrl_tools/sandbox.py", CANARY, f"/proc/{PARENT}/environ", f"/proc/{BYSTANDER}/environ",
             f"/proc/{PARENT}/root/etc/passwd", f"/proc/{PARENT}/mem", f"/proc/{PARENT}/cmdline", "/proc/self/environ",
             "/proc/1/environ", "/proc/self/root/etc/passwd", "/dev/mem", "/dev/vda", "/dev/sda", "/sys/kernel/notes",
             "/var/log/dpkg.log", "/root/.bashrc", os.path.expanduser("~root/.profile")]:
    attempt(path, lambda: open(path, "rb").read(9))
    attempt("raw " + path, lambda: os.read(syscall(257 if X86 else 56, -100, path.encode(), 0), 9))
for path in ["/etc", "/home", "/tmp", "/proc", "/sys", "/dev", "/var", "/root", REPO, os.path.dirname(CANARY), ".."]:
    attempt(path, lambda: look(path))
os.symlink("/etc/passwd", "way"); attempt("symlink", lambda: open("way").read())
os.symlink(f"/proc/{PARENT}/cwd", "cwd"); attempt("symlink to cwd", lambda: look("cwd"))
os.symlink("/", "top"); attempt("symlink to top", lambda: open("top/etc/passwd").read())
attempt("hard link", lambda: os.link("/etc/passwd", "hard"))
attempt("hard link to canary", lambda: os.link(CANARY, "hard"))
attempt("link of link", lambda: os.link("way", "hard", follow_symlinks=True))
attempt("chroot", lambda: os.chroot("."))
attempt("by handle", lambda: syscall(304 if X86 else 265, -100, b"\\0" * 64, 0))
"""

WRITING = """
import site, sysconfig, tempfile
folders = ["/tmp", "/var/tmp", "/dev/shm", "/root", "/home", "/etc", "/", "/usr/lib", "/proc", "/run", "..", REPO,
           os.path.dirname(CANARY), os.path.dirname(os.__file__)] + [p for p in sys.path if p.endswith("-packages")]
for folder in folders:
    attempt(folder, lambda: open(folder + "/mmrl-was-here", "w").write("x"))
    attempt("folder in " + folder, lambda: os.mkdir(folder + "/mmrl-was-here"))
    attempt("move to " + folder, lambda: (open("x", "w").close(), os.rename("x", folder + "/mmrl-was-here")))
    attempt("unnamed in " + folder, lambda: os.open(folder, os.O_RDWR | os.O_TMPFILE))
for path in [CANARY, REPO + "/pyproject.toml", os.__file__]:
    for name, what in {
        "write": lambda: open(path, "r+"), "cut": lambda: open(path, "w"), "append": lambda: open(path, "a"),
        "cut unopened": lambda: os.truncate(path, 0), "cut reading": lambda: os.open(path, os.O_RDONLY | os.O_TRUNC),
        "remove": lambda: os.remove(path), "move": lambda: os.rename(path, "mine"), "mode": lambda: os.chmod(path, 0),
        "owner": lambda: os.chown(path, 1, 1), "times": lambda: os.utime(path),
        "name": lambda: os.setxattr(path, "user.a", b"1"),
    }.items():
        attempt(name + " " + path, what)
attempt("own mode", lambda: os.chmod(".", 0o777))
attempt("fifo", lambda: os.mkfifo("fifo"))
attempt("device", lambda: os.mknod("disk", 0o60666, os.makedev(254, 0)))
"""


def test_nothing_outside_can_be_read(attack: Any) -> None:
    """Python's own files and the system's libraries are the exception: they are no secrets."""
    if (text := attack(READING)) is not None:
        assert "OPEN" not in text
        assert text.count("closed") == 22 * 2 + 11 + 8


@pytest.mark.parametrize("code", ["READING", "NETWORK"])
def test_the_attacks_work_where_nothing_stops_them(watch: Any, code: str) -> None:
    outcome = run(watch.names + globals()[code], layers=(), bounds=Bounds(output=20000))
    assert outcome.text.count("OPEN") > 5


def test_nothing_outside_can_be_written(attack: Any) -> None:
    if (text := attack(WRITING)) is not None:
        assert "OPEN" not in text
        assert text.count("closed") >= 15 * 4 + 33 + 3
    assert not (REPO / "mmrl-was-here").exists()


def test_the_scratch_folder_works(attack: Any) -> None:
    code = """
import json, shutil, tempfile, numpy as np
os.makedirs("a/b"); open("a/b/c.txt", "w").write("hello"); os.rename("a/b/c.txt", "a/d.txt"); os.remove("a/d.txt")
np.save("x.npy", np.arange(5)); shutil.rmtree("a")
with tempfile.NamedTemporaryFile() as file:
    file.write(b"x")
print(np.load("x.npy").sum(), sorted(os.listdir(".")), open(os.devnull).read() == "", open(os.devnull, "w").write("x"))
"""
    if (text := attack(code)) is not None:
        assert text.strip() == "10 ['out', 'x.npy'] True 1"


def test_environment_and_descriptors_of_the_trainer_do_not_come_along(
    attack: Any, watch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "xyzzy")
    code = """
def is_open(number):
    try: return bool(os.fstat(number))
    except OSError: return False
print(len([n for n in range(5000) if is_open(n)]), sorted(os.environ))
"""
    with watch.canary.open() as file:
        os.set_inheritable(file.fileno(), True)
        text = attack(code)
    if text is not None:
        assert text.startswith("4 [")  # /dev/null, output twice, report
        assert "API_KEY" not in text
        assert "xyzzy" not in text


# --- network and processes --------------------------------------------------------------------------------------------

NETWORK = """
import socket, asyncio, urllib.request
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK, socket.AF_PACKET, 38, 40, 44):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        attempt(f"socket {family} {kind}", lambda: socket.socket(family, kind))
attempt("pair", socket.socketpair)
attempt("tcp", lambda: socket.create_connection(("127.0.0.1", PORT), timeout=5))
attempt("udp", lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", PORT)))
attempt("abstract", lambda: socket.socket(socket.AF_UNIX).connect(ABSTRACT))
attempt("server", lambda: socket.create_server(("127.0.0.1", 0)))
attempt("url", lambda: urllib.request.urlopen(f"http://127.0.0.1:{PORT}/", timeout=5))
attempt("name", lambda: socket.getaddrinfo("localhost", "https"))
attempt("raw call", lambda: syscall(41 if X86 else 198, 2, 1, 0))
"""

PROCESSES = """
import subprocess, multiprocessing, signal, resource, fcntl
def fork():
    if not os.fork():
        os.setsid(); os.fork()
        import time
        while True: time.sleep(1)
attempt("fork", fork)
attempt("forkpty", os.forkpty)
attempt("spawn", lambda: os.posix_spawn("/bin/sh", ["sh"], {}))
attempt("exec", lambda: os.execv("/bin/sh", ["sh", "-c", "echo OPEN"]))
attempt("exec python", lambda: os.execv(sys.executable, ["python", "-c", "print('OPEN')"]))
attempt("subprocess", lambda: subprocess.run(["/bin/ls"]))
attempt("system", lambda: 1 / (os.system("id") == 0))
attempt("pool", lambda: multiprocessing.get_context("fork").Pool(1))
attempt("session", os.setsid)
attempt("group", lambda: os.setpgid(0, 0))
for pid in (PARENT, BYSTANDER, os.getppid(), -1, 0, 1):
    attempt(f"kill {pid}", lambda: os.kill(pid, signal.SIGKILL))
for pid in (PARENT, BYSTANDER):
    attempt("exists", lambda: os.kill(pid, 0))
    attempt("handle", lambda: os.pidfd_open(pid))
    attempt("limits", lambda: resource.prlimit(pid, resource.RLIMIT_CPU, (0, 0)))
    attempt("processors", lambda: os.sched_setaffinity(pid, {0}))
    attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
    attempt("scheduler", lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)))
    attempt("owner of signals", lambda: fcntl.fcntl(1, fcntl.F_SETOWN, pid))
attempt("signal of a file", lambda: fcntl.fcntl(1, 10, signal.SIGKILL))
attempt("user", lambda: os.setuid(os.getuid() + 1))
attempt("root", lambda: os.setresuid(0, 0, 1))
attempt("memory file", lambda: os.memfd_create("x"))
attempt("more memory", lambda: resource.setrlimit(resource.RLIMIT_AS, (-1, -1)))
"""

# by number: x86_64, aarch64
CALLS = """
numbers = {
    "ptrace": (101, 117, 16, PARENT, 0, 0),
    "process_vm_readv": (310, 270, PARENT, 0, 0, 0, 0, 0), "process_vm_writev": (311, 271, PARENT, 0, 0, 0, 0, 0),
    "process_madvise": (440, 440, 0, 0, 0, 0, 0), "move_pages": (279, 239, PARENT, 0, 0, 0, 0, 0),
    "kcmp": (312, 272, PARENT, 1, 0, 0, 0), "get_robust_list": (274, 100, PARENT, bytes(8), bytes(8)),
    "pidfd_open": (434, 434, PARENT, 0), "pidfd_getfd": (438, 438, 0, 0, 0),
    "tgkill": (234, 131, PARENT, PARENT, 0), "tkill": (200, 130, PARENT, 0),
    "rt_sigqueueinfo": (129, 138, PARENT, 9, 0),
    "clone": (56, 220, 17, 0, 0, 0, 0), "clone3": (435, 435, bytes(88), 88),
    "execveat": (322, 281, -100, b"/bin/sh", 0, 0, 0), "unshare": (272, 97, 0x10000000), "setns": (308, 268, 0, 0),
    "mount": (165, 40, b"none", b".", b"tmpfs", 0, 0), "umount2": (166, 39, b"/", 2),
    "pivot_root": (155, 41, b".", b"."), "fsopen": (430, 430, b"tmpfs", 0), "open_tree": (428, 428, -100, b"/", 1),
    "move_mount": (429, 429, 0, b"", 0, b"", 0), "openat2": (437, 437, -100, b"/etc/passwd", bytes(24), 24),
    "keyctl": (250, 219, 0, 0, 0), "add_key": (248, 217, b"user", b"a", b"b", 1, -4),
    "request_key": (249, 218, b"user", b"a", 0, 0), "bpf": (321, 280, 0, bytes(64), 64),
    "io_uring_setup": (425, 425, 4, bytes(128)), "perf_event_open": (298, 241, bytes(128), 0, -1, -1, 0),
    "userfaultfd": (323, 282, 1), "memfd_secret": (447, 447, 0), "vmsplice": (278, 75, 1, 0, 0, 0),
    "shmget": (29, 194, 0, 4096, 0o1600), "msgget": (68, 186, 0, 0o1600), "semget": (64, 190, 0, 1, 0o1600),
    "mq_open": (240, 180, b"q", 0o102, 0o600, 0), "inotify_init1": (294, 26, 0), "fanotify_init": (300, 262, 0, 0),
    "kexec_load": (246, 104, 0, 0, 0, 0), "init_module": (175, 105, 0, 0, b""), "reboot": (169, 142, 0, 0, 0, 0),
    "swapon": (167, 224, b"x", 0), "acct": (163, 89, b"x"), "syslog": (103, 116, 3, 0, 0),
    "quotactl": (179, 60, 0, 0, 0, 0), "sethostname": (170, 161, b"x", 1), "personality": (135, 92, 0),
    "clock_settime": (227, 112, 0, bytes(16)), "capset": (126, 91, bytes(8), bytes(24)),
    "seccomp": (317, 277, 1, 0, 0), "landlock_create_ruleset": (444, 444, 0, 0, 1), "newer than all": (1000, 1000),
}
print(len(numbers), "calls")
for name, (x86, arm, *rest) in numbers.items():
    attempt(name, lambda: syscall(x86 if X86 else arm, *rest))
"""


def test_no_network(attack: Any) -> None:
    if (text := attack(NETWORK)) is not None:
        assert "OPEN" not in text
        assert text.count("closed") == 8 * 4 + 8


def test_no_other_processes(attack: Any) -> None:
    """No new ones, so nothing can outlive the call, and no way to those that are there."""
    if (text := attack(PROCESSES)) is not None:
        assert "OPEN" not in text
        assert text.count("closed") == 10 + 6 + 14 + 5


def test_no_other_system_calls(attack: Any) -> None:
    if (text := attack(CALLS)) is not None:
        assert "OPEN" not in text
        assert text.count("closed OSError") + text.count("closed PermissionError") == int(text.split(" calls")[0])


def test_calls_of_another_architecture_end_the_process(attack: Any) -> None:
    code = """
import mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write({})
ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
print("OPEN")
"""
    in_32_bits = b"\xb8\x14\x00\x00\x00\xcd\x80\xc3"  # mov eax, 20 (getpid); int 0x80; ret
    x32 = b"\xb8\x27\x00\x00\x40\x0f\x05\xc3"  # mov eax, 0x40000027; syscall; ret
    on_arm = b"\x48\x00\x80\xd2" * 2  # no second architecture to call there: the code just ends badly
    for instructions in (in_32_bits, x32) if X86 else (on_arm,):
        if (text := attack(code.format(instructions))) is not None:
            assert text.strip() == f"code_error\nthe process died: SIG{'SYS' if X86 else 'ILL'}"
