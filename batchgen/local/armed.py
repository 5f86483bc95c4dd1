"""Becomes the given command, armed to end with its parent.

Run as a script in a fresh interpreter (`python -I -S armed.py PARENT SIGNAL IDENTITY ENVIRONMENT
COMMAND…`), standard library only, so that it starts in about 20 ms. Everything here has to happen
after exec in a process of one thread: the parent-death signal belongs to the thread that sets it,
a user namespace can be entered by a single-threaded process only, and Python code between fork
and exec in a process with threads may deadlock.

PARENT       process id that must still be the parent once the signal is armed
SIGNAL       number of the signal to get when the parent ends
IDENTITY     `same`, `namespace` (uid 1000 of a user namespace of its own), `nobody` (uid 65534),
             or `reaching-nobody` (uid 65534 that may pass through directories closed to it)
ENVIRONMENT  `keep`, or `clean` without LD_* and PG* variables, which would lead a server astray
"""

import ctypes
import os
import sys

NOBODY = 65534
INSIDE_UID = 1000

_CLONE_NEWUSER = 0x10000000
_PR_SET_PDEATHSIG = 1
_PR_SET_KEEPCAPS = 8
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_CAP_DAC_OVERRIDE = 1
_CAP_DAC_READ_SEARCH = 2
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def enter_user_namespace() -> None:
    """Become uid and gid 1000 of a new user namespace; the disk still sees the old ones."""
    uid, gid = os.geteuid(), os.getegid()
    _check(_libc.unshare(_CLONE_NEWUSER), "unshare")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{INSIDE_UID} {uid} 1"),
        ("gid_map", f"{INSIDE_UID} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:  # noqa: PTH123 (pathlib costs 10 ms)
            file.write(text)


def _permitted_capabilities() -> int:
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:  # noqa: PTH123 (as above)
        for line in file:
            if line.startswith("CapPrm:"):
                return int(line.split()[1], 16)
    return 0


def become_nobody(*, reaching: bool) -> None:
    """Become uid 65534; `reaching` keeps the right to pass through closed directories.

    That right is CAP_DAC_READ_SEARCH, else (in a container that withholds it) CAP_DAC_OVERRIDE.
    """
    permitted = _permitted_capabilities()
    _check(_libc.prctl(_PR_SET_KEEPCAPS, int(reaching), 0, 0, 0), "prctl(KEEPCAPS)")
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    if not reaching:
        return
    wanted = [c for c in (_CAP_DAC_READ_SEARCH, _CAP_DAC_OVERRIDE) if permitted >> c & 1]
    if not wanted:
        raise PermissionError(
            "may not pass through the closed directories above the data directory"
        )
    bits = 1 << wanted[0]
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    # Two records of (effective, permitted, inheritable): the low and the high 32 capabilities.
    data = (ctypes.c_uint32 * 6)(bits, bits, bits, 0, 0, 0)
    _check(_libc.capset(ctypes.byref(header), ctypes.byref(data)), "capset")
    _check(
        _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, wanted[0], 0, 0), "prctl(CAP_AMBIENT)"
    )


def main(argv: list[str]) -> None:
    parent, signal_number, identity, environment, *command = argv
    if identity == "namespace":
        enter_user_namespace()
    elif identity in ("nobody", "reaching-nobody"):
        become_nobody(reaching=identity == "reaching-nobody")
    # A change of identity disarms the signal, so it is armed last.
    _check(_libc.prctl(_PR_SET_PDEATHSIG, int(signal_number), 0, 0, 0), "prctl(PDEATHSIG)")
    if os.getppid() != int(parent):
        sys.exit(f"{command[0]}: the parent process has ended")
    variables = dict(os.environ)
    if environment == "clean":
        variables = {k: v for k, v in variables.items() if not k.startswith(("LD_", "PG"))}
    os.execvpe(command[0], command, variables)  # noqa: S606 (a shell would be wrong here)


if __name__ == "__main__":
    main(sys.argv[1:])
