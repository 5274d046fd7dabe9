"""What sampling and changes of local data refuse, by the option at fault."""

from typing import Any

import pytest
from tiny import TinyClients, TinyModule

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import DROClientSampling, LabelNoise, LocalTraining
from lightning_fl.core.errors import ConfigurationError


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
