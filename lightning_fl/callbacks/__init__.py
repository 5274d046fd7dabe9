"""Callbacks: who collaborates, who takes part, on what data, for what reward; and watching and keeping a run."""

from lightning_fl.callbacks.callback import Callback
from lightning_fl.callbacks.dro_client_sampling import DROClientSampling
from lightning_fl.callbacks.label_noise import LabelNoise
from lightning_fl.callbacks.local_mixup import LocalMixup
from lightning_fl.callbacks.model_checkpoint import ModelCheckpoint

__all__ = ["Callback", "DROClientSampling", "LabelNoise", "LocalMixup", "ModelCheckpoint"]
