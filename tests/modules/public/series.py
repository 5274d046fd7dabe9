"""Forecasting."""

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from harness import case
from torch.utils.data import DataLoader

from public.lit import load_into


def _frame(silo: int) -> pd.DataFrame:
    rng = np.random.default_rng(silo)
    return pd.concat(
        [
            pd.DataFrame({"time": range(40), "series": name, "value": rng.normal(size=40).cumsum().astype("float32")})
            for name in ("a", "b", "c")
        ],
        ignore_index=True,
    )


def _forecasting_data(silo: int) -> tuple[Any, dict[str, Any]]:
    from pytorch_forecasting import TimeSeriesDataSet
    from pytorch_forecasting.data import EncoderNormalizer

    common: dict[str, Any] = {
        "time_idx": "time",
        "target": "value",
        "group_ids": ["series"],
        "max_encoder_length": 8,
        "max_prediction_length": 4,
        "time_varying_unknown_reals": ["value"],
        "target_normalizer": EncoderNormalizer(),
    }
    frame = _frame(silo)
    train = TimeSeriesDataSet(frame[frame.time < 30], **common)
    val = TimeSeriesDataSet.from_dataset(train, frame, min_prediction_idx=30)
    loaders = {
        "train": train.to_dataloader(train=True, batch_size=8, shuffle=False, num_workers=0),
        "val": val.to_dataloader(train=False, batch_size=8, num_workers=0),
        "test": val.to_dataloader(train=False, batch_size=8, num_workers=0),
    }
    return train, loaders


@case("TemporalFusionTransformer", "pytorch-forecasting")
def forecasting_tft() -> dict[str, Any]:
    from pytorch_forecasting import TemporalFusionTransformer
    from pytorch_forecasting.metrics import QuantileLoss

    def make() -> Any:
        return TemporalFusionTransformer.from_dataset(
            _forecasting_data(0)[0],
            hidden_size=8,
            attention_head_size=1,
            hidden_continuous_size=4,
            loss=QuantileLoss(),
            log_interval=0,
            learning_rate=1e-2,
            reduce_on_plateau_patience=2,
        )

    return {"make": make, "loaders": lambda silo: _forecasting_data(silo)[1]}


def _forecasting(name: str, **options: Any) -> dict[str, Any]:
    import pytorch_forecasting

    def make() -> Any:
        return getattr(pytorch_forecasting, name).from_dataset(_forecasting_data(0)[0], log_interval=0, **options)

    return {"make": make, "loaders": lambda silo: _forecasting_data(silo)[1]}


_FORECASTING: dict[str, dict[str, Any]] = {
    "DeepAR": {"hidden_size": 8, "rnn_layers": 1},
    "NBeats": {
        "widths": [8, 8],
        "num_blocks": [1, 1],
        "num_block_layers": [1, 1],
        "expansion_coefficient_lengths": [3, 3],
    },
    "NHiTS": {"hidden_size": 8},
    "RecurrentNetwork": {"cell_type": "GRU", "hidden_size": 8, "rnn_layers": 1},
}
for _name, _options in _FORECASTING.items():
    case(_name, "pytorch-forecasting")(partial(_forecasting, _name, **_options))


def _gluonts_loaders(estimator: Any, silo: int) -> dict[str, Any]:
    from gluonts.dataset.pandas import PandasDataset
    from gluonts.itertools import Cached

    rng = np.random.default_rng(silo)
    index = pd.period_range("2020-01-01", periods=80, freq="D")
    data = PandasDataset({name: pd.Series(rng.normal(size=80).cumsum().astype("float32"), index) for name in "abc"})
    transformed = Cached(estimator.create_transformation().apply(data, is_train=True))
    module = estimator.create_lightning_module()
    np.random.seed(silo)  # noqa: NPY002  (gluonts draws its windows from it)
    batches = list(estimator.create_training_data_loader(transformed, module, shuffle_buffer_length=None))
    return {"train": DataLoader(batches, batch_size=None), "val": DataLoader(batches[:2], batch_size=None)}


def _gluonts(name: str, **options: Any) -> dict[str, Any]:
    import gluonts.torch

    estimator = getattr(gluonts.torch, f"{name}Estimator")(
        prediction_length=4, batch_size=8, num_batches_per_epoch=4, **options
    )
    cache: dict[int, Any] = {}

    def loaders(silo: int) -> dict[str, Any]:
        if silo not in cache:
            cache[silo] = _gluonts_loaders(estimator, silo)
        return cache[silo]

    return {"make": estimator.create_lightning_module, "loaders": loaders, "load": load_into}


_GLUONTS: dict[str, dict[str, Any]] = {
    "DeepAR": {"context_length": 8, "freq": "D", "num_layers": 1, "hidden_size": 8},
    "DLinear": {"context_length": 8},
    "PatchTST": {"context_length": 8, "patch_len": 4, "d_model": 8, "nhead": 2, "dim_feedforward": 8},
    "SimpleFeedForward": {"context_length": 8},
    "TemporalFusionTransformer": {"context_length": 8, "freq": "D", "num_heads": 2, "hidden_dim": 8, "variable_dim": 4},
    "WaveNet": {"freq": "D", "dilation_depth": 2, "num_residual_channels": 4, "num_skip_channels": 4, "num_bins": 16},
}
for _name, _options in _GLUONTS.items():
    case(f"{_name}LightningModule", "gluonts")(partial(_gluonts, _name, **_options))


def _neuralforecast(name: str, **options: Any) -> dict[str, Any]:
    import neuralforecast.models
    from neuralforecast.tsdataset import TimeSeriesDataModule, TimeSeriesDataset

    def make() -> Any:
        return getattr(neuralforecast.models, name)(
            h=4,
            input_size=8,
            max_steps=8,
            batch_size=2,
            windows_batch_size=8,
            valid_batch_size=2,
            inference_windows_batch_size=8,
            **options,
        )

    def datamodule(silo: int) -> Any:
        frame = _frame(silo).rename(columns={"series": "unique_id", "time": "ds", "value": "y"})
        dataset = TimeSeriesDataset.from_df(frame)[0]
        return TimeSeriesDataModule(dataset, batch_size=2, valid_batch_size=2, shuffle_train=False)

    return {"make": make, "loaders": lambda silo: {}, "datamodule": datamodule, "load": load_into}


_NEURALFORECAST: dict[str, dict[str, Any]] = {
    "LSTM": {"encoder_hidden_size": 8, "encoder_n_layers": 1, "decoder_hidden_size": 8},
    "NBEATS": {"mlp_units": [[8, 8]] * 3},
    "NHITS": {"mlp_units": [[8, 8]] * 3},
    "PatchTST": {"hidden_size": 8, "n_heads": 2, "linear_hidden_size": 8, "encoder_layers": 1, "patch_len": 4},
}
for _name, _options in _NEURALFORECAST.items():
    case(_name, "neuralforecast")(partial(_neuralforecast, _name, **_options))


def _darts(name: str, **options: Any) -> dict[str, Any]:
    import darts
    from darts import models

    def series(silo: int) -> Any:
        return darts.TimeSeries.from_values(np.random.default_rng(silo).normal(size=(60, 1)).astype("float32"))

    def model() -> Any:
        return getattr(models, name)(
            8, 4, batch_size=8, random_state=0, pl_trainer_kwargs={"accelerator": "cpu"}, **options
        )

    def make() -> Any:
        """darts makes its module with the first data."""
        import logging

        logging.getLogger("darts").setLevel(logging.ERROR)
        from pytorch_lightning import Trainer

        own = model()
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        own.fit(
            series(0), trainer=Trainer(max_steps=0, accelerator="cpu", enable_model_summary=False, **quiet), epochs=0
        )
        return own.model

    def loaders(silo: int) -> dict[str, Any]:
        from darts.models.forecasting.torch_forecasting_model import _batch_collate_fn_train

        own = model()
        dataset = own._build_train_dataset(
            series=[series(silo)],
            past_covariates=None,
            future_covariates=None,
            sample_weight=None,
            max_samples_per_ts=None,
        )
        return {
            "train": DataLoader(dataset, batch_size=8, collate_fn=_batch_collate_fn_train),
            "val": DataLoader(dataset, batch_size=8, collate_fn=_batch_collate_fn_train),
        }

    return {"make": make, "loaders": loaders, "load": load_into}


_DARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "_NBEATSModule": ("NBEATSModel", {"num_stacks": 2, "layer_widths": 8}),
    "_TCNModule": ("TCNModel", {"num_filters": 2, "kernel_size": 2, "dropout": 0.1}),
    "_TideModule": ("TiDEModel", {"hidden_size": 8, "dropout": 0.1}),
    "_TransformerModule": ("TransformerModel", {"d_model": 8, "nhead": 2, "dim_feedforward": 8}),
}
for _name, (_model, _options) in _DARTS.items():
    case(f"{_name} of {_model}", "darts")(partial(_darts, _model, **_options))
