"""Files damaged, put in the place of others, and made to do harm."""

import os
import pickle
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

__all__ = ["GONE", "MARKER", "damage", "executed"]

#: What a payload makes when it is run.
MARKER = "EXECUTED"
#: Damages after which there is no file.
GONE = ("missing", "a folder", "a link to itself", "a pipe")


class _Payload:
    def __reduce__(self) -> Any:
        return os.mkdir, (MARKER,)


def _pickled() -> bytes:
    return pickle.dumps(_Payload())


def _saved_by_torch() -> bytes:
    buffer = BytesIO()
    torch.save({"state_dict": _Payload(), "lightning_fl_version": "0.1.0"}, buffer)
    return buffer.getvalue()


def _objects() -> bytes:
    buffer = BytesIO()
    parts: dict[str, Any] = {
        name: np.array([_Payload()], dtype=object) for name in ("train_images", "train_labels", "x")
    }
    np.savez(buffer, **parts)
    return buffer.getvalue()


def _zip_bomb() -> bytes:
    """A few hundred kilobytes that announce an array of 300 MB."""
    buffer = BytesIO()
    header = BytesIO()
    shape: dict[str, Any] = {"descr": "|u1", "fortran_order": False, "shape": (300_000_000,)}
    np.lib.format.write_array_header_1_0(header, shape)
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("train_images.npy", "w") as file:
        file.write(header.getvalue())
        for _ in range(300):
            file.write(bytes(1_000_000))
    return buffer.getvalue()


def _announced() -> bytes:
    """A zip file whose array's header announces more than any machine has."""
    buffer, header = BytesIO(), BytesIO()
    shape: dict[str, Any] = {"descr": "<f8", "fortran_order": False, "shape": (10**15,)}
    np.lib.format.write_array_header_1_0(header, shape)
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in ("train_images.npy", "train_labels.npy"):
            archive.writestr(name, header.getvalue() + bytes(100))
    return buffer.getvalue()


def _flip(content: bytes, draws: random.Random, count: int) -> bytes:
    changed = bytearray(content)
    for _ in range(count):
        changed[draws.randrange(len(changed))] ^= 1 << draws.randrange(8)
    return bytes(changed)


def _zeroed(content: bytes, draws: random.Random) -> bytes:
    at = draws.randrange(len(content))
    size = min(len(content) - at, 1 + draws.randrange(512))
    return content[:at] + bytes(size) + content[at + size :]


def damage(path: Path, others: list[Path], draws: random.Random) -> str:
    """Damage a file; what was done."""
    content = path.read_bytes()
    other = draws.choice([one for one in others if one.read_bytes() != content])
    changes: dict[str, Callable[[], bytes]] = {
        "cut": lambda: content[: draws.randrange(len(content))],
        "cut by one byte": lambda: content[:-1],
        "empty": lambda: b"",
        "one bit": lambda: _flip(content, draws, 1),
        "one bit ": lambda: _flip(content, draws, 1),
        "hundred bits": lambda: _flip(content, draws, 100),
        "zeros": lambda: _zeroed(content, draws),
        "doubled": lambda: content + content,
        "random bytes": lambda: draws.randbytes(len(content) or 10),
        f"swapped with {other.name}": other.read_bytes,
        "text": lambda: b"hello, this is no such file\n",
        "a pickle with a payload": _pickled,
        "torch.save with a payload": _saved_by_torch,
        "npz of objects": _objects,
        "zip bomb": _zip_bomb,
        "announces petabytes": _announced,
        "PNG of a billion pixels": _large_png,
        "deep JSON": lambda: b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
        "JSON list": lambda: b"[1, 2]",
        "JSON null": lambda: b"null",
        "YAML payload": lambda: f"model: !!python/object/apply:os.mkdir [{MARKER}]\n".encode(),
        "missing": lambda: b"",
        "a folder": lambda: b"",
        "a link to itself": lambda: b"",
        "a pipe": lambda: b"",
    }
    how = draws.choice(list(changes))
    new = changes[how]()
    if how in GONE:
        path.unlink()
        if how == "a folder":
            path.mkdir()
        elif how == "a link to itself":
            path.symlink_to(path.name)
        elif how == "a pipe":
            os.mkfifo(path)
    else:
        path.write_bytes(new)
        how += "" if new != content else " (the same)"
    return how.strip()


def _large_png() -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", 40_000, 40_000, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def executed(*folders: Path) -> bool:
    """A payload was run by a command that worked, or had its temporary files, in these folders."""
    return any(any(folder.rglob(MARKER)) for folder in folders)
