"""Imports that are deferred until first use."""

import sys

import pytest
from processes import run


@pytest.mark.slow
@pytest.mark.processes
def test_torchmetrics_is_imported_without_scipy_signal_which_works_when_it_is_used():
    script = """
import sys
from lightning_fl.core.lazy import import_torchmetrics

import_torchmetrics()
print("torchmetrics" in sys.modules, "scipy.signal" in sys.modules)
import_torchmetrics()
import torch
from torchmetrics.functional.audio import permutation_invariant_training as pit, signal_noise_ratio
import scipy.signal
print(scipy.signal.find_peaks([0, 1, 0])[0].tolist())
sounds = torch.tensor([[[1.0, 2.0], [3.0, 1.0]]])
print(pit(sounds, sounds.flip(1), signal_noise_ratio)[1].tolist())
"""
    ended = run(sys.executable, "-W", "ignore", "-c", script)
    assert (ended.code, ended.out.splitlines()) == (0, ["True False", "[1]", "[[1, 0]]"]), ended.err
