"""Isolation of the current process, for code of strangers, as far as the platform allows.

On Linux: no new privileges, namespaces, Landlock and a filter of system calls, independently of
each other, irrevocably, and for all later processes.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL

SHARED_MEMORY = Path("/dev/shm")

# prctl(2)
SET_PDEATHSIG = 1
SET_SECCOMP = 22
SET_NO_NEW_PRIVS = 38
FILTER = 2

# unshare(2): namespaces of users, networks, System V IPC, processes and mounts.
NEW_USER, NEW_NET, NEW_IPC, NEW_PID = 0x10000000, 0x40000000, 0x08000000, 0x20000000
NEW_MOUNTS = 0x00020000

# mount(2) and mount_setattr(2), whose number is the same on all architectures.
MOUNT_SETATTR = 442
HERE, RECURSIVE = -100, 0x8000
NO_SUID, NO_DEVICES, NO_EXECUTION, BIND, PRIVATE = 2, 4, 8, 4096, 1 << 18
READ_ONLY = 1

# What is shared unless the namespaces have file systems of their own.
SHARED = ("permissions of files", "shared memory", "command lines of other processes")

CAPABILITIES = 0x20080522  # version of the structure that capset(2) reads

# landlock(7); the numbers of its system calls are the same on all architectures.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION = 1  # flag of CREATE_RULESET
BENEATH = 1  # kind of a rule
EXECUTE, WRITE, READ, READ_FOLDER = 1 << 0, 1 << 1, 1 << 2, 1 << 3
TRUNCATE, IOCTL = 1 << 14, 1 << 15
DEVICES = 1 << 6 | 1 << 11  # creation of character and block devices
OF_FILES = EXECUTE | WRITE | READ | TRUNCATE | IOCTL
TCP = 0b11  # bind and connect
OTHERS = 0b11  # abstract Unix sockets and signals

# seccomp(2): what is denied, with its numbers on x86-64 and on AArch64.
DENIED = {
    "socket": (41, 198),
    "io_uring_setup": (425, 425),  # it can open sockets by itself
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "kexec_load": (246, 104),
}
# What a process may only do to itself: the arguments that have to be 0 then. Without a namespace of
# processes, the others would be those of the user.
OF_ITSELF = {
    "prlimit64": (302, 261, [0]),
    "sched_setaffinity": (203, 122, [0]),
    "sched_setscheduler": (144, 119, [0]),
    "sched_setparam": (142, 118, [0]),
    "sched_setattr": (314, 274, [0]),
    "setpriority": (141, 140, [0, 1]),
    "ioprio_set": (251, 30, [0, 1]),
    "migrate_pages": (256, 238, [0]),
    "move_pages": (279, 239, [0]),
}
ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
X32 = 0x40000000  # system calls of the x32 interface have this bit
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06  # instructions of a filter
ALLOW, DENY = 0x7FFF0000, 0x00050000 | 1  # the latter with EPERM


def enter(
    listed: Sequence[Path], read: Sequence[Path], written: Sequence[Path], largest: int
) -> list[str]:
    """Isolate this process, and continue in a child of it if namespaces of processes are allowed.

    Call it before anything of a stranger is read, and in a process without threads.

    Args:
        listed: Folders whose own entries can be listed, but not read.
        read: Files and folders that can be read.
        written: Files and folders that can be written, too.
        largest: The largest file that can be written, in bytes.
    """
    _limit(largest)
    if sys.platform != "linux":
        return ["the network", "files", "other processes"]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    if libc.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return ["the network", "files", "other processes", "privileges"]
    own = _namespaces(libc)
    outside = _mounts(libc, written) if own else [*SHARED, "processes that it leaves behind"]
    version = libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), VERSION)
    files = version > 0 and _landlock(libc, version, listed, read, written)
    calls = _filter(libc, own)
    missing = []
    if not (calls or own):
        missing.append("the network")
    if not files:
        missing.append("files")
    if not (own or (files and version >= 6)):
        missing.append("signals to other processes" if files else "other processes")
    return missing + outside


def _limit(largest: int) -> None:
    with suppress(ImportError, ValueError, OSError):
        import resource

        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        for kind, most in (
            (resource.RLIMIT_CORE, 0),  # a dump of memory would be written to the disk
            (resource.RLIMIT_FSIZE, largest),
            (resource.RLIMIT_DATA, memory),
        ):
            hard = resource.getrlimit(kind)[1]
            if hard == resource.RLIM_INFINITY or most < hard:
                resource.setrlimit(kind, (most, most))


def _namespaces(libc: ctypes.CDLL) -> bool:
    """Leave the network and the processes of others; return whether that is allowed.

    Only children belong to a new namespace of processes, so the rest runs in a child, with whose
    end all of them end.
    """
    # A process whose user could not be mapped is of no use, so another one tries it first.
    probe = os.fork()
    if not probe:
        os._exit(0 if _unshared(libc) else 1)
    _, status = os.waitpid(probe, 0)
    if status or not _unshared(libc):
        return False
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        os._exit(code if code >= 0 else 128 - code)
    libc.prctl(SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    return True


def _unshared(libc: ctypes.CDLL) -> bool:
    user, group = os.getuid(), os.getgid()
    if libc.unshare(NEW_USER | NEW_NET | NEW_IPC | NEW_PID | NEW_MOUNTS):
        return False
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    except OSError:
        return False
    return True


def _mounts(libc: ctypes.CDLL, written: Sequence[Path]) -> list[str]:
    """Make all file systems read-only, but for what may be written; return what did not work.

    Landlock does not deny a change of permissions, owners and times.
    """
    folders = [path for path in written if path.is_dir() and path != SHARED_MEMORY]
    alone = _attributes(libc, Path("/"), propagation=PRIVATE)
    bound = [alone and _mount(libc, path, path, None, BIND) for path in folders]
    memory = alone and _mount(libc, "tmpfs", SHARED_MEMORY, "tmpfs", NO_SUID | NO_DEVICES)
    processes = alone and _mount(
        libc, "proc", Path("/proc"), "proc", NO_SUID | NO_DEVICES | NO_EXECUTION
    )
    locked = all(bound) and _attributes(libc, Path("/"), add=READ_ONLY)
    if locked:
        for path in (*folders, SHARED_MEMORY) if memory else folders:
            _attributes(libc, path, remove=READ_ONLY)
    _drop_capabilities(libc)
    return [
        word for word, held in zip(SHARED, (locked, memory, processes), strict=True) if not held
    ]


def _mount(
    libc: ctypes.CDLL, source: str | Path, target: Path, kind: str | None, flags: int
) -> bool:
    words = [os.fsencode(source), os.fsencode(target), kind.encode() if kind else None]
    return not libc.mount(*words, ctypes.c_ulong(flags), None)


def _attributes(
    libc: ctypes.CDLL, path: Path, add: int = 0, remove: int = 0, propagation: int = 0
) -> bool:
    asked = struct.pack("=4Q", add, remove, propagation, 0)
    size = ctypes.c_size_t(len(asked))
    return not libc.syscall(MOUNT_SETATTR, HERE, os.fsencode(path), RECURSIVE, asked, size)


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    libc.capset(struct.pack("=Ii", CAPABILITIES, 0), bytes(24))


def _landlock(
    libc: ctypes.CDLL,
    version: int,
    listed: Sequence[Path],
    read: Sequence[Path],
    written: Sequence[Path],
) -> bool:
    rights = (1 << 13) - 1
    for since, right in ((2, 1 << 13), (3, TRUNCATE), (5, IOCTL)):
        if version >= since:
            rights |= right
    fields = [rights]
    if version >= 4:
        fields.append(TCP)
    if version >= 6:
        fields.append(OTHERS)
    handled = struct.pack(f"{len(fields)}Q", *fields)
    ruleset = libc.syscall(CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), 0)
    if ruleset < 0:
        return False
    try:
        for paths, given in (
            (listed, READ_FOLDER),
            (read, EXECUTE | READ | READ_FOLDER),
            (written, rights & ~DEVICES),
        ):
            for path in paths:
                _allow(libc, ruleset, path, given)
        return not libc.syscall(RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not path.is_dir():
            rights &= OF_FILES
        rule = struct.pack("=Qi", rights, place)
        libc.syscall(ADD_RULE, ruleset, BENEATH, rule, 0)
    finally:
        os.close(place)


def _filter(libc: ctypes.CDLL, own: bool) -> bool:
    if platform.machine() not in ARCHITECTURES or struct.calcsize("P") != 8:
        return False
    architecture, column = ARCHITECTURES[platform.machine()]
    # An instruction is (code, steps if true, steps if false, operand); the last one denies.
    deny = -1
    program = [
        (LOAD, 0, 0, 4),  # the architecture of the call
        (EQUAL, 0, deny, architecture),
        (LOAD, 0, 0, 0),  # its number
        (AT_LEAST, deny, 0, X32),
    ]
    for both in DENIED.values():
        program.append((EQUAL, deny, 0, both[column]))
    for *numbers, arguments in () if own else OF_ITSELF.values():
        program.append((EQUAL, 0, 2 * len(arguments) + 1, numbers[column]))
        for place in arguments:
            program.append((LOAD, 0, 0, 16 + 8 * place))  # the lower half of an argument
            program.append((EQUAL, 0, deny, 0))
        program.append((RETURN, 0, 0, ALLOW))
    program += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, DENY)]
    packed = b""
    for place, (code, yes, no, operand) in enumerate(program):
        last = len(program) - place - 2
        packed += struct.pack(
            "HBBI", code, last if yes == deny else yes, last if no == deny else no, operand
        )
    buffer = ctypes.create_string_buffer(packed)
    pointer = struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer))
    return not libc.prctl(SET_SECCOMP, FILTER, pointer, 0, 0)
