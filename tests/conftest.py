"""Every test starts from the same environment and leaves none of its own behind."""

import gc
import importlib.metadata
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from processes import no_process_left, start_warm, warm_python

# Every trainer asks for both, a fifth of the time of a tiny run; before anything imports them.
importlib.metadata.entry_points = cache(importlib.metadata.entry_points)
importlib.metadata.version = cache(importlib.metadata.version)

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


def _begin_in(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """A working directory with a cache of its own, no network, and none of our variables from the caller."""
    for name in (*_OURS, *_PROCESSES):
        patch.delenv(name, raising=False)
    patch.setenv("LIGHTNING_FL_OFFLINE", "1")
    patch.setenv("LIGHTNING_FL_CACHE", str(folder / "cache"))
    patch.chdir(folder)


@pytest.fixture(scope="session", autouse=True)
def _environment_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What fixtures of modules and of the session begin with, which are made before a test's own environment."""
    import torch  # not with this file, which the process that only hands out tests reads too

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tests run side by side, and small sums on several threads wait for each other
    with pytest.MonkeyPatch.context() as patch:
        _begin_in(tmp_path_factory.mktemp("folder"), patch)
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session", autouse=True)
def _parsers_made_once() -> Iterator[None]:
    """A recipe's parser takes longer to make than a tiny run; modules of the working directory are found as ever."""
    from lightning_fl import cli

    make_parser, of_recipes = cli.make_parser, cache(cli.make_parser)

    def kept(command: str, module: Any = None) -> Any:
        if module is None or module.__name__ != cli._RUN:
            return make_parser(command, module)
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        return of_recipes(command, module)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "make_parser", kept)
        yield


@pytest.fixture(scope="session")
def parser() -> Any:
    """The parser of ``fit``."""
    from lightning_fl.cli import make_parser

    return make_parser("fit")


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """How sure FedCollab is of its coalitions is not asked: most of the time of a tiny run."""
    from lightning_fl.functional.fedcollab import same_coalitions_share

    monkeypatch.setitem(same_coalitions_share.__kwdefaults__, "num_draws", 1)


#: The names of pictures that were drawn in this process.
_DRAWN: set[str] = set()


@pytest.fixture
def quick_pictures(monkeypatch: pytest.MonkeyPatch, few_draws: None) -> None:
    """Of pictures of one name the first is drawn: what they show is tested elsewhere, here that a recipe makes them."""
    from matplotlib.figure import Figure

    from lightning_fl.runtime.run_log import RunLog

    draw, log = Figure.savefig, RunLog.log_figure

    def log_quickly(run_log: RunLog, name: str, figure: Figure, step: int) -> None:
        if name in _DRAWN:
            run_log.write(f"figures/{name}.png", b"")
        else:
            log(run_log, name, figure, step)
            _DRAWN.add(name)

    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *args, **options: draw(figure, *args, **options | {"dpi": 20})
    )
    monkeypatch.setattr(RunLog, "log_figure", log_quickly)


@pytest.fixture
def cuda_standin() -> Iterator[Any]:
    """A CUDA device made of software, which must have refused nothing that the test did not look at."""
    from cuda_standin.device import StandIn

    with StandIn() as standin:
        yield standin
    assert not standin.refusals


def pytest_collection_finish() -> None:
    """What has been imported stays: no collection of garbage needs to look through it, which takes half a second."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Python ends as ever."""
    gc.unfreeze()


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """A worker for each core; among all tests are some that wait for what they start, so that one more has time."""
    return len(os.sched_getaffinity(0)) + (not config.option.markexpr)


@pytest.hookimpl(tryfirst=True)  # before the plugin's own
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Neighbours go to one worker, so that a module's fixtures are made once; ``--dist`` may say otherwise."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getvalue("dist") == "load" else None


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What starts processes takes seconds."""
    for item in items:
        if item.get_closest_marker("processes") is not None:
            item.add_marker("slow")


@pytest.fixture(autouse=True)
def _own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of its own, no network, one thread; no process group and no place of imports is left behind."""
    import torch

    before = dict(os.environ)
    _begin_in(tmp_path, monkeypatch)
    monkeypatch.setattr(sys, "path", list(sys.path))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
        pytest.fail("the test left a process group behind")
    monkeypatch.undo()
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)
