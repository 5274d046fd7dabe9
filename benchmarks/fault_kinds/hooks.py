"""Code that runs before a command in its process: what a machine does to it, done on purpose."""

__all__ = ["clock", "full_disk"]

_MAIN = """
import sys
from lightning_fl.cli import main
sys.exit(main())
"""

_DISK = """
import builtins, errno, io, os

ROOT, AT, LASTS, ERROR = {root!r}, {at}, {lasts}, {error}
count = 0

def place(path):
    try:
        return os.readlink(f"/proc/self/fd/{{path}}") if isinstance(path, int) else os.path.abspath(os.fspath(path))
    except (OSError, TypeError, ValueError):
        return ""

def meets(path):
    global count
    where = place(path)
    if isinstance(where, bytes) or not where.startswith(ROOT):
        return
    count += 1
    if count == AT or (LASTS and count > AT):
        raise OSError(ERROR, os.strerror(ERROR), where)

class File:
    def __init__(self, file, path):
        self.__dict__.update(_file=file, _path=path)
    def __getattr__(self, name):
        return getattr(self._file, name)
    def __setattr__(self, name, value):
        setattr(self._file, name, value)
    def write(self, content):
        meets(self._path)
        return self._file.write(content)
    def writelines(self, lines):
        meets(self._path)
        return self._file.writelines(lines)
    def __enter__(self):
        self._file.__enter__()
        return self
    def __exit__(self, *of):
        return self._file.__exit__(*of)
    def __iter__(self):
        return iter(self._file)
    def __next__(self):
        return next(self._file)

really = io.open
def opened(file, mode="r", *args, **kwargs):
    if set(mode) & set("wax+"):
        meets(file)
        return File(really(file, mode, *args, **kwargs), file)
    return really(file, mode, *args, **kwargs)

builtins.open = io.open = opened

def guarded(name, which=0):
    really = getattr(os, name)
    def guard(*args, **kwargs):
        meets(args[which])
        return really(*args, **kwargs)
    setattr(os, name, guard)

for name in ("fsync", "mkdir"):
    guarded(name)
for name in ("replace", "rename", "link"):
    guarded(name, 1)
"""

_CLOCK = """
import random, time

draws = random.Random({seed})
really, begin = time.time, time.monotonic()
jumps = sorted((draws.random() * {seconds}, draws.choice([-1, 1]) * 10 ** draws.uniform(0, 9)) for _ in range({count}))

def jumping():
    past = [size for at, size in jumps if at <= time.monotonic() - begin]
    return max(1.0, really() + (past[-1] if past else 0.0))

time.time = jumping
time.time_ns = lambda: int(jumping() * 1e9)
"""


def full_disk(root: str, at: int, lasts: bool, error: int) -> str:
    """A program as ``-m lightning_fl`` whose n-th change of a file below a folder fails, and all later ones perhaps.

    Args:
        root: of the disk.
        at: which change, from 1: opening for writing, a write, fsync, mkdir, replace, rename, link.
        lasts: the disk stays full.
        error: a number of ``errno``.
    """
    return _DISK.format(root=root, at=at, lasts=lasts, error=error) + _MAIN


def clock(seed: int, seconds: float, count: int) -> str:
    """A program as ``-m lightning_fl`` whose ``time.time()`` jumps, by a second to thirty years, back and forth."""
    return _CLOCK.format(seed=seed, seconds=seconds, count=count) + _MAIN
