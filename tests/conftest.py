"""Every test starts from the same environment and leaves none of its own behind."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from processes import no_process_left, start_warm, warm_python

__all__ = ["no_process_left", "start_warm", "warm_python"]  # fixtures

_OURS = ("PL_GLOBAL_SEED", "LIGHTNING_FL_DATA", "LIGHTNING_FL_CACHE", "LIGHTNING_FL_OFFLINE", "LIGHTNING_FL_DEBUG")
_PROCESSES = ("WORLD_SIZE", "LOCAL_RANK", "RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")


# Every test has a folder of its own, in which nobody would look for examples that failed before; time is no failure.
settings.register_profile("without a memory", database=None, deadline=None)
settings.load_profile("without a memory")


def pytest_addoption(parser: pytest.Parser) -> None:
    """See docs/extending.md."""
    parser.addoption(
        "--cuda-standin", action="store_true", help="run tests of one process on a CUDA device of software"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Where tests run, torch is needed anyway."""
    if config.getoption("--cuda-standin"):
        from cuda_standin.plugin import EverywhereOnTheDevice

        config.pluginmanager.register(EverywhereOnTheDevice())


@pytest.fixture
def cuda_standin() -> Iterator[Any]:
    """A CUDA device made of software, which must have refused nothing that the test did not look at."""
    from cuda_standin.device import StandIn

    with StandIn() as standin:
        yield standin
    assert not standin.refusals


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """A worker for each core; among all tests are some that wait for what they start, so that one more has time."""
    return len(os.sched_getaffinity(0)) + (not config.option.markexpr)


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What starts processes takes seconds."""
    for item in items:
        if item.get_closest_marker("processes") is not None:
            item.add_marker("slow")


@pytest.fixture(autouse=True)
def _own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of its own, no network, one thread, no process group left behind."""
    import torch  # not with this file, which the process that only hands out tests reads too

    before = dict(os.environ)
    for name in (*_OURS, *_PROCESSES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LIGHTNING_FL_OFFLINE", "1")
    monkeypatch.setenv("LIGHTNING_FL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tests run side by side, and small sums on several threads wait for each other
    yield
    torch.set_num_threads(threads)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
        pytest.fail("the test left a process group behind")
    monkeypatch.undo()
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)
