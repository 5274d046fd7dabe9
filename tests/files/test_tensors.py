"""Files of tensors or arrays are read as they were written, or refused."""

import io
import os
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Semaphore
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock
from processes import LIMIT

from lightning_fl.core.errors import CheckpointError, DataError
from lightning_fl.files import tensors
from lightning_fl.files.tensors import NUMPY, load_or_compute, read_numpy, read_torch

CONTENT = {"weights": torch.arange(40.0), "name": "a", "numbers": [1, 2.5], "rate": np.float64(0.5)}


def read(path: Path, **options: Any) -> Any:
    return read_torch(path, "a checkpoint", "Use another one.", known=NUMPY, **options)


def same(found: Any) -> bool:
    rest = {name: value for name, value in found.items() if name != "weights"}
    return torch.equal(found["weights"], CONTENT["weights"]) and rest == {k: CONTENT[k] for k in rest}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "some.ckpt"
    torch.save(CONTENT, path)
    return path


class Payload:
    def __reduce__(self) -> Any:
        return os.mkdir, ("executed",)


@pytest.mark.slow
@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_a_flipped_byte_anywhere_is_noticed_or_changes_nothing(flip: int, saved: Path) -> None:
    content = saved.read_bytes()
    refused = []
    for position in range(0, len(content), 5):
        changed = bytearray(content)
        changed[position] ^= flip
        saved.write_bytes(changed)
        try:
            assert same(read(saved))  # in what fills up, or says when the file was made
        except CheckpointError as error:
            refused.append(str(error))
    assert len(refused) > len(content) / 5 / 2
    assert all(text.startswith(f"{saved} is damaged or not a checkpoint (") for text in refused)
    assert all(len(text.splitlines()) == 1 and "weights_only" not in text for text in refused)


@pytest.mark.slow
def test_a_file_cut_off_anywhere_is_refused(saved: Path) -> None:
    content = saved.read_bytes()
    for length in range(0, len(content), 7):
        saved.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"some.ckpt is damaged or not a checkpoint \(.+\)"):
            read(saved)


def test_the_record_whose_checksum_does_not_hold_is_named(saved: Path) -> None:
    content = bytearray(saved.read_bytes())
    content[content.index(CONTENT["weights"].numpy().tobytes()) + 50] ^= 1
    saved.write_bytes(content)
    with pytest.raises(CheckpointError, match="record '0'"):
        read(saved)


def test_a_file_without_checksums_is_read(saved: Path) -> None:
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(CONTENT, saved)
    finally:
        torch.serialization.set_crc32_options(before)
    assert same(read(saved))


def test_records_that_would_fill_the_memory_are_refused(saved: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed.ckpt"
    with zipfile.ZipFile(saved) as whole, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as other:
        for name in whole.namelist():
            other.writestr(name, whole.read(name))
    with pytest.raises(CheckpointError, match="compressed"):
        read(packed)


@pytest.mark.parametrize(("new_format", "reason"), [(True, "more than values and tensors"), (False, "torch.save")])
def test_objects_are_never_made(new_format: bool, reason: str, saved: Path) -> None:
    torch.save({"weights": Payload()}, saved, _use_new_zipfile_serialization=new_format)
    with pytest.raises(CheckpointError, match=reason):
        read(saved)
    assert not Path("executed").exists()


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, reason in ((tmp_path / "pipe", "not a file"), (tmp_path / "none", "No such file or directory")):
        with pytest.raises(CheckpointError, match=reason):
            read(path)
        with pytest.raises(DataError, match=reason):
            read_numpy(path, ".npy", "fetch it.", error=DataError)


def arrays(path: Path) -> dict[str, np.ndarray]:
    return read_numpy(path, ".npz", "fetch it again.", error=DataError, prefixes=("a",))


def test_arrays_are_read_by_the_beginning_of_their_names(tmp_path: Path) -> None:
    np.savez(tmp_path / "some.npz", a_1=np.arange(3), b=np.zeros(2))
    assert list(arrays(tmp_path / "some.npz")) == ["a_1"]
    np.save(tmp_path / "one.npy", np.arange(3))
    assert read_numpy(tmp_path / "one.npy", ".npy", "", error=DataError)[""].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"text", "numpy"),
        (b"\x80\x04K\x01.", "numpy"),
        (b"PK\x03\x04", "corrupt"),
        ({"a": np.array([{}])}, "Python objects"),
        (np.zeros(2), "single array"),
        ("text in it", "'a'"),
        (b"\x93NUMPY\x01\x00", "corrupt"),
    ],
)
def test_other_files_of_arrays_are_refused(content: Any, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "some.npz"
    stream = io.BytesIO(content if isinstance(content, bytes) else b"")
    if isinstance(content, dict):
        np.savez(stream, **content)
    elif isinstance(content, np.ndarray):
        np.save(stream, content)
    elif isinstance(content, str):
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr("a", content)
    path.write_bytes(stream.getvalue())
    with pytest.raises(DataError) as caught:
        arrays(path)
    assert str(path) in str(caught.value)
    assert reason in str(caught.value)


def test_what_several_need_at_once_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrived, computed = Semaphore(0), []

    class Announced(FileLock):  # type: ignore[misc, valid-type]  # an alias of the platform's class
        def acquire(self, *args: Any, **options: Any) -> Any:
            arrived.release()
            return super().acquire(*args, **options)

    def compute() -> torch.Tensor:
        computed.append("x")
        for _ in range(2):
            assert arrived.acquire(timeout=LIMIT)  # both look for it before it is there
        return CONTENT["weights"]  # type: ignore[return-value]

    monkeypatch.setattr(tensors, "FileLock", Announced)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: load_or_compute(tmp_path, "a kind", ["C"], compute), range(2)))
    assert all(torch.equal(one, CONTENT["weights"]) for one in found)  # type: ignore[arg-type]
    assert len(computed) == 1
