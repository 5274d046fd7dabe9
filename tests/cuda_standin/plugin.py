"""``pytest --cuda-standin``: every test of one process has the stand-in's device, and what asks for the CPU gets it.

A test that compares what is on the device with what is not fails as it would on a GPU; so does one during which the
device refused something, also where somebody caught the error.
"""

from collections import Counter
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest

import lightning_fl.inference.forward
import lightning_fl.trainer.trainer
from cuda_standin.device import StandIn

__all__ = ["EverywhereOnTheDevice"]

#: Tests that stay on the CPU, by the beginnings of their names, and why.
_LEFT_ON_THE_CPU: dict[str, str] = {
    "tests/engine/turn/test_compilation.py": "torch.compile is not stood in for",
    "tests/engine/test_cuda_standin_device.py": "it is about the stand-in itself",
    "tests/engine/test_profile.py::test_no_reading_of_the_clock_is_lost": "a GPU's clock waits for it",
    "tests/engine/test_profile.py::test_a_client_that_fails_leaves_the_parts_whole": "a GPU's clock waits for it",
    "tests/engine/stacked/test_stackable.py::test_a_step_that_cannot_be_run_for_several_clients": (
        "its plain attributes stay on the host"
    ),
    "tests/models/test_molecule.py::test_bf16_mixed_is_close_to_full_precision": (
        "autocast of recurrent cells is not stood in for"
    ),
    "tests/recipe/test_choose_processes.py": "it is about processes on CPUs",
    "tests/callbacks/test_callbacks_on_the_device.py": "it has a stand-in of its own",
    "tests/test_recipes_on_the_device.py": "it has a stand-in of its own",
    "tests/test_processes_per_device.py": "it is about GPUs of its own making",
    "tests/test_devices_of_a_run.py": "it is about GPUs of its own making",
    "tests/core/test_validation.py::test_an_option_refuses_what_is_no_number_of_its_range[FederatedTrainer.devices]": (
        "it is about a machine without GPUs"
    ),
    "tests/trainer/test_trainer_refusals.py::test_a_device_that_is_missing": "it is about a machine without GPUs",
    **{
        f"tests/compatibility/{test}": why
        for why, tests in {
            "it names the CPU": (
                "test_data.py::test_transfer_hooks_of",
                "test_hooks.py::test_values_in_training",
                "test_module_trainer.py::test_an_error_of_the_module_names_its_place",
            ),
            "its module makes tensors, layers or metrics on the host, which fails on any GPU": (
                "test_late_modules.py::test_as_under_lightnings_trainer[Replaced]",
                "test_loaders.py::test_a_loader_s_metrics_stand_for_its_samples",
                "test_loaders.py::test_batches_without_tensors",
                "test_loaders.py::test_a_batch_whose_size_nobody_tells_counts_as_one",
                "test_logging.py::test_metric_objects",
                "test_module_trainer.py::test_loaders_are_those_of_the_client_whose_turn_it_is",
                "test_module_trainer.py::test_the_data_module_is_the_silos",
                "test_compatibility_refusals.py::test_refused[another-shape]",
            ),
            "a copy shares nothing": (
                "test_state.py::test_layers[Shares",
                "test_state.py::test_memory_that_parameters_share_stays_shared",
                "test_compatibility_refusals.py::test_refused[overlap",
            ),
            "recurrent cells of cuDNN are not stood in for": ("test_state.py::test_layers[Recurrent]",),
            "parameters without a shape are not stood in for": ("test_state.py::test_lazy_layers",),
        }.items()
        for test in tests
    },
}


def reason_for_the_cpu(item: pytest.Item) -> str | None:
    """Why a test stays on the CPU."""
    if item.get_closest_marker("processes") is not None:
        return "it starts processes, which know of no stand-in"
    if "cuda_standin" in getattr(item, "fixturenames", ()):
        return "it has a stand-in of its own"
    return next((why for name, why in _LEFT_ON_THE_CPU.items() if item.nodeid.startswith(name)), None)


class EverywhereOnTheDevice:
    """A plugin of pytest."""

    def __init__(self) -> None:
        self.left: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        why = reason_for_the_cpu(item)
        if why is not None:
            item.user_properties.append(("left_on_the_cpu", why))
            return (yield)
        with StandIn() as standin, pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                lightning_fl.trainer.trainer, "make_fabric", _on_the_device(lightning_fl.trainer.trainer.make_fabric)
            )
            patch.setattr(lightning_fl.inference.forward, "Fabric", _fabric(lightning_fl.inference.forward.Fabric))
            item.stash[_STANDIN] = standin
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        result = yield
        standin = item.stash.get(_STANDIN, None)
        if standin is not None and standin.refusals:
            pytest.fail("the device refused, and somebody caught it: " + "; ".join(standin.refusals[:3]))
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.left.update(why for name, why in report.user_properties if name == "left_on_the_cpu")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for why, count in self.left.most_common():
            terminalreporter.write_line(f"left on the CPU: {count} tests ({why})")


_STANDIN: pytest.StashKey[StandIn] = pytest.StashKey()


def _on_the_device(make: Any) -> Any:
    def make_fabric(trainer: Any, strategy: Any) -> Any:
        names = ("accelerator", "devices", "num_nodes", "precision", "plugins", "processes_per_device")
        asked = SimpleNamespace(**{name: getattr(trainer, name) for name in names})
        if asked.accelerator in ("cpu", "auto") and asked.devices in (1, "1", "auto") and asked.num_nodes == 1:
            asked.accelerator, asked.devices = "cuda", 1
        return make(asked, strategy)

    return make_fabric


def _fabric(make: Any) -> Any:
    def fabric(*, accelerator: str = "auto", **arguments: Any) -> Any:
        return make(accelerator="cuda" if accelerator == "cpu" else accelerator, **arguments)

    return fabric
