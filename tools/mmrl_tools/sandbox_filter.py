"""The system calls that code in the sandbox may make, as a seccomp program for the kernel.

It is a list of what is allowed: files that are reached by path (the file layer says which), memory, threads, clocks
and signal handlers. All else fails with "Operation not permitted": sockets of every family, new processes (`fork`,
`execve`), signals to anyone, ptrace and reading other processes, mounts and namespaces, keys, BPF, io_uring, memory
files, shared memory of System V, changing owner, mode or times of files, locks on files, hard links, device nodes.
Calls newer than this list are answered as by a kernel that does not have them. One of another architecture (32 bits,
x32) ends the process.

Numbers: `asm/unistd_64.h` (x86_64) and `asm-generic/unistd.h` (aarch64) of Linux. Program: `linux/seccomp.h`,
`linux/bpf_common.h`.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass

_ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*, both little endian
_X32 = 0x40000000  # marks the x32 calls of x86_64
_NEWEST = 450  # the last call known here
_ALLOW, _KILL, _EPERM, _ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026

# name, number on x86_64, number on aarch64
_PLAIN = """
read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, preadv 295 69, pwritev 296 70
close 3 57, close_range 436 436, fstat 5 80, stat 4 -, lstat 6 -, newfstatat 262 79, statx 332 291, lseek 8 62
access 21 -, faccessat 269 48, faccessat2 439 439, mkdir 83 -, mkdirat 258 34, rmdir 84 -, unlink 87 -
unlinkat 263 35, rename 82 -, renameat 264 38, renameat2 316 276, symlink 88 -, symlinkat 266 36, readlink 89 -
readlinkat 267 78, getcwd 79 17, chdir 80 49, fchdir 81 50, getdents64 217 61, ftruncate 77 46, fallocate 285 47
fsync 74 82, fdatasync 75 83, fadvise64 221 223, copy_file_range 326 285, sendfile 40 71, dup 32 23, dup2 33 -
dup3 292 24, pipe 22 -, pipe2 293 59, poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72, epoll_create1 291 20
epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22, eventfd2 290 19, mmap 9 222, munmap 11 215, mremap 25 216
mprotect 10 226, madvise 28 233, brk 12 214, msync 26 227, membarrier 324 283, futex 202 98, set_robust_list 273 99
rseq 334 293, set_tid_address 218 96, gettid 186 178, getpid 39 172, getppid 110 173, getuid 102 174, geteuid 107 175
getgid 104 176, getegid 108 177, getpgid 121 155, getgroups 115 158, getresuid 118 148, getresgid 120 150
uname 63 160, sysinfo 99 179, getrusage 98 165, getrlimit 97 163, times 100 153, getcpu 309 168, sched_yield 24 124
sched_getaffinity 204 123, getrandom 318 278, clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115
nanosleep 35 101, gettimeofday 96 169, time 201 -, rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139
rt_sigpending 127 136, rt_sigtimedwait 128 137, rt_sigsuspend 130 133, sigaltstack 131 132, setitimer 38 103
getitimer 36 102, alarm 37 -, pause 34 -, restart_syscall 219 128, exit 60 93, exit_group 231 94, umask 95 166
"""


@dataclass(frozen=True)
class _Checked:
    """A call that is allowed where argument number `argument` (its low 32 bits, all that the kernel reads of it) is
    one of `values`, has a bit of `some`, or has no bit of `none`."""

    numbers: tuple[int | None, int | None]  # x86_64, aarch64
    argument: int
    values: tuple[int, ...] = ()
    some: int = 0
    none: int = 0


_THREAD = 0x00010000  # CLONE_THREAD: a thread, not a process
_TMPFILE = 0o20000000  # O_TMPFILE: a file that no count of the scratch folder would see
_CHECKED = (
    _Checked((56, 220), 0, some=_THREAD),  # clone
    _Checked((2, None), 1, none=_TMPFILE),  # open
    _Checked((257, 56), 2, none=_TMPFILE),  # openat
    # fcntl: duplicate and flags; no locks, which other processes see, and not F_SETOWN, by which a file signals them
    _Checked((72, 25), 1, values=(0, 1, 2, 3, 4, 1030)),
    _Checked((16, 29), 1, values=(0x5401, 0x541B, 0x5450, 0x5451)),  # ioctl: is it a terminal, bytes to read, cloexec
    _Checked((157, 167), 0, values=(15, 16)),  # prctl: name of a thread
    _Checked((302, 261), 0, values=(0,)),  # prlimit64: of itself, which can only go down
)
_CLONE3 = 435  # its flags are behind a pointer: as if it were not there, and the C library takes clone


@functools.cache
def program(machine: str) -> bytes | None:
    """The filter for `os.uname().machine`, an array of `struct sock_filter`; None for machines not known here."""
    if machine not in _ARCHES:
        return None
    column = list(_ARCHES).index(machine)
    code = [_load(4), *_unless(_JEQ, _ARCHES[machine], _KILL), _load(0)]
    if machine == "x86_64":
        code += _when(_JGE, _X32, _KILL)
    code += [*_when(_JEQ, _CLONE3, _ENOSYS), *_when(_JGT, _NEWEST, _ENOSYS)]
    for number in _numbers(column):
        code += _when(_JEQ, number, _ALLOW)
    for call in _CHECKED:
        if (checked := call.numbers[column]) is not None:
            body = _argument(call)
            code += [(_JEQ, 0, len(body), checked), *body]
    return b"".join(struct.pack("<HBBI", *line) for line in [*code, _ret(_EPERM)])


def _numbers(column: int) -> list[int]:
    rows = (row.split() for row in _PLAIN.replace("\n", ",").split(",") if row.strip())
    return sorted(int(row[1 + column]) for row in rows if row[1 + column] != "-")


_Line = tuple[int, int, int, int]  # code, jump if true, jump if false, constant
_JEQ, _JGT, _JGE, _JSET = 0x15, 0x25, 0x35, 0x45


def _load(offset: int) -> _Line:
    """Load 32 bits of `struct seccomp_data`: number at 0, architecture at 4, arguments of 64 bits from 16."""
    return 0x20, 0, 0, offset


def _ret(value: int) -> _Line:
    return 0x06, 0, 0, value


def _when(jump: int, constant: int, value: int) -> list[_Line]:
    return [(jump, 0, 1, constant), _ret(value)]


def _unless(jump: int, constant: int, value: int) -> list[_Line]:
    return [(jump, 1, 0, constant), _ret(value)]


def _argument(call: _Checked) -> list[_Line]:
    """What decides a checked call; it ends in a return in every case."""
    code = [_load(16 + 8 * call.argument)]
    for value in call.values:
        code += _when(_JEQ, value, _ALLOW)
    if call.some:
        code += _when(_JSET, call.some, _ALLOW)
    if call.none:
        code += _unless(_JSET, call.none, _ALLOW)
    return [*code, _ret(_EPERM)]
