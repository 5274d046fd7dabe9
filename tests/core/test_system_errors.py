"""What the machine refuses is one sentence with the mend."""

import errno
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from lightning_fl.core.errors import TrainingError
from lightning_fl.core.system_errors import breaks_device, out_of_memory, place_of, refusal


def raised(action):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of any kind: what it is called is not looked at
        action()
    return caught.value


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "no space left on the disk, or in the quota (No space left on device: runs/x): free some"),
        (errno.EDQUOT, "no space left on the disk, or in the quota (Disk quota exceeded: runs/x): free some"),
        (errno.EROFS, "the system does not allow it (Read-only file system: runs/x): give a place"),
        (errno.EACCES, "the system does not allow it (Permission denied: runs/x): give a place"),
        (errno.EMFILE, "too many files are open (Too many open files: runs/x): raise the limit (ulimit -n)"),
        (errno.EAGAIN, "the system starts no further thread or process (Resource temporarily unavailable: runs/x)"),
        (errno.ENOMEM, "out of memory (Cannot allocate memory: runs/x): make the model"),
        (errno.EADDRINUSE, "a port cannot be opened (Address already in use: runs/x): another program listens"),
        (errno.ECONNRESET, "a connection broke (Connection reset by peer: runs/x): another process of the run"),
        (errno.ENOENT, "No such file or directory: runs/x: look at this file or folder."),
        (errno.ENAMETOOLONG, "File name too long: runs/x: look at this file or folder."),
    ],
)
def test_what_the_system_refuses(number, words):
    said = refusal(OSError(number, os.strerror(number), "runs/x"))
    assert said is not None
    assert said.startswith(words)
    assert said.endswith(".")


def test_memory_that_torch_and_numpy_ask_for():
    for action in (lambda: torch.empty(10**15), lambda: np.empty(10**15)):
        said = refusal(raised(action))
        assert said is not None
        assert said.startswith("out of memory (")
        assert "enforce fail" not in said
        assert "data.batch_size" in said


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("can't start new thread"), "the system starts no further thread or process ("),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "out of memory (CUDA out of memory"),
        (RuntimeError("[pair.cc:545] Read error [127.0.0.1]:39: Connection reset by peer"), "a connection broke (Read"),
        (
            RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"),
            "no space left on the disk",
        ),
        (
            RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "),
            "a worker that loads data was ended (",
        ),
        (RuntimeError("unable to open shared memory object </torch_1>"), "shared memory failed ("),
        (ImportError("libcudart.so.12: cannot open shared object file: No such file"), "a library cannot be loaded"),
        (RuntimeError("CUDA error: device-side assert triggered"), "the GPU refuses to go on ("),
        (RecursionError("maximum recursion depth exceeded"), "something is nested too deeply for Python ("),
    ],
)
def test_what_torch_says_in_words_of_its_own(error, words):
    said = refusal(error)
    assert said is not None
    assert said.startswith(words)


def test_what_the_machine_did_not_refuse():
    assert refusal(RuntimeError("shapes do not match")) is None
    assert refusal(KeyError("out of memory")) is None


def test_the_cause_counts_and_a_circle_of_causes_ends():
    error = TrainingError("cannot write")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    assert str(refusal(error)).startswith("no space left")
    first, second = ValueError("a"), ValueError("b")
    first.__context__, second.__context__ = second, first
    assert refusal(first) is None


def test_the_place_is_that_of_the_users_line():
    assert "test_system_errors.py, line " in place_of(raised(lambda: np.linalg.inv(np.zeros((2, 3)))))


@pytest.mark.processes
def test_a_limit_of_the_system_is_no_traceback():
    code = (
        "import resource, sys; from lightning_fl.recipe.error_messages import exit_code\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))\n"
        "sys.exit(exit_code(lambda: [open('/dev/null') for _ in range(20)]))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: too many files are open (Too many open files: /dev/null")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        torch.AcceleratorError("whatever another accelerator says"),
        RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be reported later"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`"),
        torch.distributed.DistBackendError("NCCL error in: x.cpp:1, unhandled cuda error"),
    ],
)
def test_what_leaves_a_gpu_lost(error):
    assert breaks_device(error)
    assert not out_of_memory(error)
    wrapped = TrainingError("client 1 failed")
    wrapped.__cause__ = error
    assert breaks_device(wrapped)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8 GiB"),
        torch.AcceleratorError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried"),
        MemoryError(),
    ],
)
def test_memory_that_was_lacking_leaves_the_device_whole(error):
    assert out_of_memory(error)
    assert not breaks_device(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if"),
        RuntimeError("Expected all tensors to be on the same device, but found cuda:0 and cpu"),
        ValueError("CUDA error in my own words"),
    ],
)
def test_other_errors_of_a_gpu_s_user_leave_the_device_whole(error):
    assert not breaks_device(error)
    assert not out_of_memory(error)


def test_an_assert_on_the_device_says_what_to_look_for():
    said = refusal(RuntimeError("CUDA error: device-side assert triggered"))
    assert said == (
        "the GPU refuses to go on (CUDA error: device-side assert triggered): a label or an index is out of range, most"
        " often; trainer.accelerator=cpu, or CUDA_LAUNCH_BLOCKING=1 in the environment, tells the line."
    )
