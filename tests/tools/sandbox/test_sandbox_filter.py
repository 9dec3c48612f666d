"""The list of system calls, as the kernel reads it."""

from __future__ import annotations

import os
import struct

import pytest

from mmrl_tools.sandbox_filter import program

ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x50001, 0x50026
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def verdict(machine: str, number: int, *arguments: int, arch: int | None = None) -> int:
    """What the program says of a call: an interpreter of the instructions that it may consist of."""
    code = program(machine)
    data = struct.pack("<IIQ6Q", number, ARCH[machine] if arch is None else arch, 0, *(*arguments, *[0] * 6)[:6])
    at = accumulator = 0
    while True:
        what, true, false, constant = struct.unpack_from("<HBBI", code, 8 * at)
        at += 1
        if what == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, constant)
        elif what == 0x06:
            return constant
        else:
            test = {0x15: accumulator == constant, 0x25: accumulator > constant, 0x35: accumulator >= constant,
                    0x45: bool(accumulator & constant)}[what]  # fmt: skip
            at += true if test else false


@pytest.mark.parametrize(
    ("machine", "allowed", "forbidden"),
    [
        # read write close mmap futex exit_group getrandom newfstatat | socket connect socketpair execve ...
        ("x86_64", (0, 1, 3, 9, 202, 231, 318, 262), (41, 42, 53, 59, 57, 58, 62, 101, 165, 321, 425, 319, 310, 90)),
        ("aarch64", (63, 64, 57, 222, 98, 94, 278, 79), (198, 203, 199, 221, 129, 117, 40, 280, 425, 279, 270, 52)),
    ],
)  # fmt: skip
def test_the_filter(machine: str, allowed: tuple[int, ...], forbidden: tuple[int, ...]) -> None:
    assert {verdict(machine, n) for n in allowed} == {ALLOW}
    assert {verdict(machine, n) for n in forbidden} == {EPERM}
    assert verdict(machine, allowed[0], arch=0x40000003) == KILL
    assert [verdict(machine, n) for n in (435, 451, 1000)] == [ENOSYS] * 3
    clone, openat, fcntl, ioctl, prctl, prlimit = (
        (56, 257, 72, 16, 157, 302) if machine == "x86_64" else (220, 56, 25, 29, 167, 261)
    )
    assert verdict(machine, clone, 0x3D0F00) == ALLOW  # the flags of a thread
    assert verdict(machine, clone, 0x01200011) == EPERM  # of fork
    assert verdict(machine, clone, 0x4111) == EPERM  # of vfork
    assert verdict(machine, openat, 0, 0, os.O_RDWR | os.O_CREAT) == ALLOW
    assert verdict(machine, openat, 0, 0, os.O_RDWR | 0o20000000) == EPERM
    assert [verdict(machine, fcntl, 1, n) for n in (1, 3, 1030, 6, 8, 10, 1031)] == [ALLOW] * 3 + [EPERM] * 4
    assert [verdict(machine, ioctl, 0, n) for n in (0x5401, 0x5412, 0x8901)] == [ALLOW, EPERM, EPERM]
    assert [verdict(machine, prctl, n) for n in (15, 1, 22, 38)] == [ALLOW, EPERM, EPERM, EPERM]
    assert [verdict(machine, prlimit, n) for n in (0, 1, 4321)] == [ALLOW, EPERM, EPERM]


def test_the_filter_allows_no_call_by_accident() -> None:
    """As many as are listed, and those that are allowed with arguments of zero: open, openat, fcntl, prlimit64."""
    for machine, count in (("x86_64", 109 + 4), ("aarch64", 92 + 3)):
        assert sum(verdict(machine, n) == ALLOW for n in range(1 << 10)) == count
    assert verdict("x86_64", 0x40000000) == verdict("x86_64", 0xFFFFFFFF) == KILL
    assert program("riscv64") is None
