"""What the system refuses is one sentence that says what to do."""

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
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of any kind
        action()
    return caught.value


NAMED = {
    errno.ENOSPC: "trainer.default_root_dir",
    errno.EDQUOT: "trainer.default_root_dir",
    errno.EROFS: "written",
    errno.EACCES: "written",
    errno.EMFILE: "ulimit -n",
    errno.EAGAIN: "ulimit -u",
    errno.ENOMEM: "data.batch_size",
    errno.EADDRINUSE: "MASTER_PORT",
    errno.ECONNRESET: "another process",
    errno.ENOENT: "this file or folder",
    errno.ENAMETOOLONG: "this file or folder",
}


@pytest.mark.parametrize("number", NAMED, ids=errno.errorcode.get)
def test_refusals_of_the_system_name_the_file_and_the_remedy(number):
    found = refusal(OSError(number, os.strerror(number), "runs/x"))
    assert found is not None
    assert f"{os.strerror(number)}: runs/x" in found
    assert NAMED[number] in found
    assert found.endswith(".")


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (raised(lambda: torch.empty(10**15)), "data.batch_size"),
        (raised(lambda: np.empty(10**15)), "data.batch_size"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "data.batch_size"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
        (torch.AcceleratorError("CUDA error: device-side assert triggered"), "trainer.accelerator"),
        (RecursionError("maximum recursion depth exceeded"), "recipe or module"),
        (RuntimeError("shapes do not match"), None),
        (KeyError("out of memory"), None),
    ],
)
def test_refusals_of_other_types(error, named):
    found = refusal(error)
    assert (found is None) == (named is None)
    if found is not None:
        assert named in found
        assert "enforce fail" not in found


def test_the_cause_counts_and_a_circle_of_causes_ends():
    error = TrainingError("cannot write")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    assert str(refusal(error)).startswith("No space left")
    first, second = ValueError("a"), ValueError("b")
    first.__context__, second.__context__ = second, first
    assert refusal(first) is None


def test_the_place_is_that_of_the_users_line():
    assert "test_system_errors.py, line " in place_of(raised(lambda: np.linalg.inv(np.zeros((2, 3)))))


@pytest.mark.parametrize("folder", ["overlay/lib/python3.11/site-packages/torch", "/usr/lib/python3/dist-packages"])
def test_an_installed_package_of_another_environment_is_not_the_users(folder):
    there: dict = {}
    exec(compile("def fail():\n    raise ValueError", f"{folder}/linear.py", "exec"), there)
    assert "test_system_errors.py, line " in place_of(raised(there["fail"]))


@pytest.mark.processes
def test_a_limit_of_the_system_is_no_traceback():
    code = (
        "import resource, sys; from lightning_fl.recipe.error_messages import exit_code\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))\n"
        "sys.exit(exit_code(lambda: [open('/dev/null') for _ in range(20)]))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: Too many open files: /dev/null: ")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("error", "lost", "memory"),
    [
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), True, False),
        (torch.AcceleratorError("whatever another accelerator says"), True, False),
        (torch.distributed.DistBackendError("NCCL error in: x.cpp:1, unhandled cuda error"), True, False),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has"), False, True),
        (torch.AcceleratorError("CUDA error: out of memory"), False, True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), False, True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory"), False, True),
        (MemoryError(), False, True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if"), False, False),
        (RuntimeError("Expected all tensors to be on the same device, but found cuda:0 and cpu"), False, False),
        (ValueError("CUDA error in my own words"), False, False),
    ],
)
def test_a_lost_device_and_lacking_memory_are_told_apart(error, lost, memory):
    wrapped = TrainingError("client 1 failed")
    wrapped.__cause__ = error
    for one in (error, wrapped):
        assert (breaks_device(one), out_of_memory(one)) == (lost, memory)
