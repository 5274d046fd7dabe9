"""What the callbacks of collaboration refuse, by the name of the option at fault."""

import math

import pytest
from two_kinds import trainer

from lightning_fl.callbacks import HCCT, LocalTraining
from lightning_fl.core.errors import ConfigurationError


@pytest.mark.parametrize(
    ("cls", "options", "name"),
    [
        (HCCT, {"relative_trade_off": -1.0}, r"HCCT\.relative_trade_off=-1"),
        (HCCT, {"relative_trade_off": math.nan}, r"HCCT\.relative_trade_off=nan"),
        (HCCT, {"every_n_rounds": 0}, r"HCCT\.every_n_rounds=0"),
    ],
)
def test_an_option_out_of_range(cls, options, name):
    with pytest.raises(ConfigurationError, match=name):
        cls(**options)


@pytest.mark.parametrize(
    ("callbacks", "names"),
    [
        ([lambda: HCCT(), lambda: LocalTraining()], "HCCT and LocalTraining"),
    ],
)
def test_callbacks_that_exclude_each_other(callbacks, names):
    with pytest.raises(ConfigurationError, match=names):
        trainer(*(make() for make in callbacks))
