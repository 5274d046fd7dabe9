"""What sampling and changes of local data refuse, by the option at fault."""

import math
from typing import Any

import pytest
from tiny import TinyClients, TinyModule

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import DROClientSampling, LabelNoise, LocalMixup, LocalTraining, UniformSampling
from lightning_fl.core.errors import ConfigurationError


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        *[(UniformSampling, {"cohort_size": size}) for size in (0, -1, 2.5, math.nan, math.inf)],
        (DROClientSampling, {"cohort_size": 0}),
        (DROClientSampling, {"step_size": -1.0}),
        (DROClientSampling, {"floor": 1.5}),
        (DROClientSampling, {"num_loss_batches": 0}),
        (DROClientSampling, {"method": "max"}),
        (DROClientSampling, {"cohort": "most"}),
        (DROClientSampling, {"cohort_size": 2, "cohort": "all"}),
        (DROClientSampling, {"cohort_size": 2, "method": "afl"}),
        (LabelNoise, {"std": -1.0}),
        (LabelNoise, {"probability": 1.5}),
        (LabelNoise, {"client_share": -0.5}),
        (LabelNoise, {"num_classes": 1}),
        (LabelNoise, {"clients": [-1]}),
        (LabelNoise, {"splits": ("train", "tset")}),
        (LocalMixup, {"alpha": -1}),
    ],
)
def test_an_option_out_of_range(cls: Any, options: dict[str, Any]) -> None:
    (name, *_) = options
    with pytest.raises(ConfigurationError, match=rf"{cls.__name__}\.{name}\b.*="):
        cls(**options)


@pytest.mark.parametrize(
    ("callbacks", "settings", "name"),
    [
        ([DROClientSampling()], {"local_steps": None}, r"DROClientSampling .*trainer\.local_steps"),
        ([DROClientSampling(method="afl")], {}, r"method=afl .*trainer\.local_steps"),
        ([DROClientSampling(floor=0.5)], {}, r"DROClientSampling\.floor=0\.5 for 3 .*0\.3333"),
        ([DROClientSampling(cohort_size=100_000)], {}, r"DROClientSampling\.cohort_size=100000"),
        ([LocalTraining(), DROClientSampling()], {}, "DROClientSampling .* 3"),
        ([LabelNoise(clients=[7])], {}, r"LabelNoise\.clients=\[7\]"),
    ],
)
def test_what_a_run_refuses(callbacks: Any, settings: dict[str, Any], name: str) -> None:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    with pytest.raises(ConfigurationError, match=name):
        FederatedTrainer(callbacks=callbacks, max_rounds=1, **{"local_steps": 3, **quiet, **settings}).fit(
            TinyModule(), TinyClients()
        )
