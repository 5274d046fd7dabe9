"""What machine and which packages these are, and what is missing."""

import importlib.metadata
import platform
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from packaging.requirements import Requirement

from gpu_phases.common import Arm, Options, Row, cores

#: What comes with a missing package, which pip is not asked to resolve where there is no network.
_WITH = {"jsonargparse": ("typeshed_client", "importlib_resources", "docstring_parser", "shtab")}


def machine(options: Options) -> Iterator[Row]:
    """Versions and the device."""
    yield Row("python, torch, CUDA", f"{platform.python_version()}, {torch.__version__}, {torch.version.cuda}")
    yield Row("processor cores, threads of torch", f"{cores()}, {torch.get_num_threads()}")
    yield Row("CUDA devices", torch.cuda.device_count())
    if options.device != "cuda":
        return
    about = torch.cuda.get_device_properties(0)
    yield Row("device", about.name, note=f"{about.multi_processor_count} SMs, {about.major}.{about.minor}")
    free, total = torch.cuda.mem_get_info()
    yield Row("memory, free of GiB", f"{free / 2**30:.1f} of {total / 2**30:.1f}")
    nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else None
    yield Row("cuDNN, NCCL", f"{torch.backends.cudnn.version()}, {nccl}")
    yield Row("bfloat16", torch.cuda.is_bf16_supported())
    yield Row("TF32 in matrix products", torch.backends.cuda.matmul.allow_tf32)
    yield Row("TF32 in convolutions", torch.backends.cudnn.allow_tf32)


def kernels(options: Options) -> Iterator[Row]:
    """What the options for speed stand on, by itself."""
    device = options.torch_device
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad):
        parameter = torch.nn.Parameter(torch.ones(5, device=device))
        parameter.grad = torch.ones_like(parameter)
        kind([parameter], lr=0.1, fused=True).step()
        yield Row(f"fused {kind.__name__}", f"{float(parameter[0].detach()):.2f}", "0.90")
    torch.use_deterministic_algorithms(True)
    product = torch.ones(64, 64, device=device) @ torch.ones(64, 64, device=device)
    yield Row("deterministic matrix product", float(product[0, 0]), "64.0", "without CUBLAS_WORKSPACE_CONFIG")
    torch.use_deterministic_algorithms(False)
    if options.device != "cuda":
        return
    x = torch.zeros(3, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
    x.fill_(4)
    graph.replay()
    yield Row("a captured graph", y.tolist(), "[5.0, 5.0, 5.0]")


def packages(options: Options) -> Iterator[Row]:
    """What of ``pyproject.toml`` is there, and how to bring the rest."""
    missing = []
    for line in tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["dependencies"]:
        wanted = Requirement(line)
        version = _version(wanted.name)
        if version is None or not wanted.specifier.contains(version, prereleases=True):
            missing.append(wanted)
            yield Row(wanted.name, version or "missing", str(wanted.specifier))
    if missing:
        yield Row("to carry", how_to_carry(missing))
    else:
        yield Row("packages of pyproject.toml", "all there")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def how_to_carry(missing: list[Requirement]) -> str:
    """The two commands that bring packages to a machine without a network."""
    wanted: list[Any] = [f"{one.name}{one.specifier}" for one in missing]
    wanted += [name for one in missing for name in _WITH.get(one.name, ()) if _version(name) is None]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return (
        f"where there is a network: python3 -m pip download --no-deps --only-binary=:all: --python-version {python}"
        " --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform"
        f" manylinux2014_x86_64 -d wheels {' '.join(map(repr, wanted))}; here: python3 -m pip install --no-index"
        " --no-deps --target site wheels/*.whl, and site on PYTHONPATH"
    )


PARALLEL = True
ARMS: dict[str, Arm] = {"machine": machine, "kernels": kernels, "packages": packages}
