"""Data module of Hugging Face data sets: images or tables (the extra ``lightning-fl[hf]``)."""

import glob
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from lightning_fl.core.errors import ConfigurationError, DataError, cut, expect_extra, listed
from lightning_fl.core.validation import Count, checked_fields
from lightning_fl.data.cards.lookup import file_sha256, is_offline
from lightning_fl.data.module import SPLIT_NAMES, SPLITS, Split
from lightning_fl.data.shared import ClientShares, OpenedData, SharedDataModule
from lightning_fl.files.text_table import require_columns


@checked_fields
class HFDataset(SharedDataModule):
    """A data set of the Hugging Face Hub, or of a folder or file, partitioned among clients.

    Samples, kept in memory, are images if a column has them, else rows: numbers, flattened if a cell holds several,
    and a one-hot code of every column of texts or classes. With ``GroupBy(column=...)`` each value of it is a client.

    Args:
        path: a name on the Hub (``ylecun/mnist``), a folder (of ``save_to_disk``, or of files that the library reads:
            Parquet, CSV, JSON, images in folders), or a ``.parquet``, ``.csv`` or ``.json`` file.
        config: the configuration on the Hub, if there are several.
        revision: a commit of the Hub's repository, for reproducible data.
        target: the column to predict. Floating numbers make a regression, float32 [n, 1]; other values make classes,
            int64 [n], in the order of the data set's declaration, or else sorted.
        image: the column of images; ``None`` for the only one, if any.
        columns: input columns; ``None`` for all numbers, classes and texts without the target and ``drop``.
        drop: columns to leave out of the inputs, such as the owner of a row.
        parts: train, val and test -> name in the data set; ``None`` for the usual names.
        pooled: join all parts before they are partitioned.
        size: height and width that images are scaled to; needed if they differ.
        channels: 1 for grey, 3 for colour; ``None`` for the images' own.
        normalize: subtract the mean and divide by the standard deviation of the training samples, by channel or column.
    """

    path: str
    target: str
    config: str | None = None
    revision: str | None = None
    image: str | None = None
    columns: list[str] | None = None
    drop: list[str] | None = None
    parts: dict[str, str] | None = None
    pooled: bool = False
    size: tuple[Count, Count] | None = None
    channels: Literal[1, 3] | None = None
    normalize: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        parts, columns, others = self.parts, self.columns, (self.drop, self.image)
        if parts is not None and not ({"train"} <= set(parts) <= set(SPLITS)):
            raise ConfigurationError(f"HFDataset.parts={parts}: must have the keys train and, if any, val and test.")
        if columns is not None and (others != (None, None) or not columns or self.target in columns):
            what = "input columns without the target, and neither drop nor image"
            raise ConfigurationError(f"HFDataset.columns={columns}: give {what}.")
        expect_extra("datasets", "hf", "HFDataset")
        self._statistics: dict[str, list[float]] = {}

    @property
    def class_names(self) -> list[str]:
        """Names of the classes 0, 1, ..., after ``prepare_data`` or ``setup``; empty for a regression."""
        return list(self._data.record["classes"])

    classes = class_names

    def _open(self, *, allow_download: bool) -> OpenedData:
        from datasets import concatenate_datasets

        found = self._parts_of(self._read(allow_download))
        if self.pooled:
            found = {"train": concatenate_datasets(list(found.values()))}
        first = found["train"]
        image = self._image_column(first.features)
        require_columns(first.column_names, [self.target, *(self.columns or []), *(self.drop or [])], self.path)
        others = [name for name in first.features if name != self.target and name not in (self.drop or [])]
        columns = [image] if image else self.columns or others
        if not columns:
            raise DataError(f"{self.path} has no input column next to the target {self.target!r}: drop fewer.")
        classes = _categories(found, self.target, whole_numbers=True)
        encoders = {} if image else {name: _categories(found, name, whole_numbers=False) for name in columns}

        def inputs_of(table: Any) -> Tensor:
            if image:
                return self._images(table, image)
            return torch.cat([_numbers(table, name, encoders[name]) for name in columns], 1)

        datasets = {
            split: _Samples(inputs_of(table), self._targets(table, classes), table) for split, table in found.items()
        }
        shape = list(datasets["train"].inputs.shape[1:])
        path = Path(self.path).expanduser()
        record = {
            "name": path.name if path.exists() else self.path,
            **({"file": path.name, "sha256": file_sha256(path)} if path.is_file() else {}),
            "config": self.config,
            "revision": self.revision,
            "licence": first.info.license or None,
            "citation": first.info.citation or None,
            "rows": {split: len(table) for split, table in found.items()},
            "target": self.target,
            "classes": classes or [],
            "columns": columns,
            **({"image_shape": shape} if image else {"num_features": shape[0]}),
        }
        return OpenedData(datasets, "user" if path.exists() else "measured", record)

    def _read(self, allow_download: bool) -> Any:
        import datasets

        path = Path(self.path).expanduser()
        options: dict[str, Any] = {}
        if not allow_download or is_offline():
            options["download_config"] = datasets.DownloadConfig(local_files_only=True)
        try:
            if path.is_dir() and any((path / name).is_file() for name in ("dataset_dict.json", "state.json")):
                return datasets.load_from_disk(str(path))
            if path.is_file():
                kind = path.suffix.lstrip(".").replace("jsonl", "json")
                if kind not in ("parquet", "csv", "json"):
                    raise ConfigurationError(f"HFDataset.path={self.path!r}: must be a .parquet, .csv or .json file.")
                return datasets.load_dataset(kind, data_files=glob.escape(str(path.resolve())))
            if path.is_dir() and any(sign in str(path.resolve()) for sign in ("*", "?", "[", "::")):
                raise ConfigurationError(f"HFDataset.path={self.path!r}: must have none of * ? [ and ::; rename it.")
            source = str(path) if path.is_dir() else self.path
            return datasets.load_dataset(source, self.config, revision=self.revision, **options)
        except ConfigurationError:
            raise
        except Exception as error:  # the library has its own errors for every way in which data can be missing
            reason = cut(" ".join(str(error).split()), 300)
            raise DataError(f"HFDataset.path={self.path!r} cannot be read: {reason}. Check the name.") from error

    def _parts_of(self, read: Any) -> dict[Split, Any]:
        there = dict(read) if isinstance(read, dict) else {"train": read}
        usual: dict[Any, str] = {SPLIT_NAMES.get(name.lower()): name for name in reversed(list(there))}
        if "train" not in usual and len(there) == 1:
            usual = {"train": next(iter(there))}
        named = usual if self.parts is None else self.parts
        wanted = {split: named.get(split) for split in SPLITS}
        missing = [name for name in wanted.values() if name is not None and name not in there]
        if missing or wanted["train"] is None:
            part = missing[0] if missing else "train"
            raise DataError(f"{self.path} has no part {part!r}, only {listed(list(there))}: set HFDataset.parts.")
        found = {split: there[name] for split, name in wanted.items() if name is not None}
        if empty := [split for split, table in found.items() if len(table) == 0]:
            raise DataError(f"{self.path}: the part for {empty[0]} has no rows.")
        return found

    def _image_column(self, features: Mapping[str, Any]) -> str | None:
        from datasets import Image

        images = [name for name, kind in features.items() if isinstance(kind, Image)]
        if self.image is not None and self.image not in images:
            found = f"{self.path} has {listed(images) or 'no'} columns of images"
            raise DataError(f"HFDataset.image={self.image!r}: {found}; name one of them, or omit image.")
        if self.columns is not None:
            return None
        if self.image is None and len(images) > 1:
            raise DataError(f"{self.path} has columns of images {listed(images)}: choose one with HFDataset.image.")
        return self.image or (images[0] if images else None)

    def _targets(self, table: Any, classes: list[str] | None) -> Tensor:
        values = _values(table, self.target)
        if classes is None:
            known = [np.nan if value is None else value for value in values]
            targets = torch.tensor(known, dtype=torch.float32)[:, None]
            missing, what = ~targets.isfinite(), "is empty or not finite"
        else:
            targets = torch.from_numpy(_codes(values, classes))
            missing, what = targets < 0, "has no class"
        if missing.any():
            row = int(missing.nonzero()[0, 0])
            raise DataError(f"{self.path}: {self.target!r} of row {row} {what}: leave such rows out.")
        return targets

    def _images(self, table: Any, name: str) -> Tensor:
        """All images, uint8 [n, C, H, W]."""
        found: list[np.ndarray[Any, Any]] = []
        for number, image in enumerate(table[name]):
            if image is None:
                raise DataError(f"{self.path}: {name!r} of row {number} is empty: leave such rows out.")
            if image.mode.startswith(("I", "F")):
                raise DataError(f"{self.path}: {name!r} of row {number} has mode {image.mode}: convert it to 0..255.")
            channels = self.channels or (1 if image.mode in ("L", "1") else 3)
            image = image.convert("L" if channels == 1 else "RGB")
            if self.size is not None and image.size != (self.size[1], self.size[0]):
                image = image.resize((self.size[1], self.size[0]))
            pixels = np.asarray(image, dtype=np.uint8).reshape(image.height, image.width, channels).transpose(2, 0, 1)
            if found and pixels.shape != found[0].shape:
                shapes = f"the images have shapes from {list(found[0].shape)} to {list(pixels.shape)}"
                raise DataError(f"{self.path}: {shapes}: give HFDataset.size, such as [32, 32], and channels.")
            found.append(pixels)
        return torch.from_numpy(np.stack(found))

    def _hold(self, datasets: Mapping[Split, "_Samples"], shares: ClientShares) -> Mapping[Split, Dataset]:
        inputs = {split: samples.inputs for split, samples in datasets.items()}
        scale = 255.0 if inputs["train"].dtype == torch.uint8 else 1.0
        mean, std = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
        if self.normalize:
            trained = torch.cat([of_client["train"] for of_client in shares])
            of_training = inputs["train"][trained].double() / scale
            axes = (0, 2, 3) if of_training.ndim == 4 else (0,)
            mean, std = of_training.mean(axes, keepdim=True), of_training.std(axes, correction=0, keepdim=True)
            std = torch.where(std > 1e-12 * mean.abs(), std, 1.0)  # a deviation from rounding alone counts as 0
            self._statistics = {"mean": mean.flatten().tolist(), "std": std.flatten().tolist()}
        return {
            split: TensorDataset(((values.double() / scale - mean) / std).float(), datasets[split].targets)
            for split, values in inputs.items()
        }

    def describe(self) -> Mapping[str, Any]:
        return {**super().describe(), "normalization": self._statistics}


@dataclass(eq=False, repr=False)
class _Samples(Dataset):
    """Inputs [n, ...] and targets, with the columns for partitioners."""

    inputs: Tensor
    targets: Tensor
    table: Any

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.targets[index]

    def column(self, name: str) -> list[Any] | None:
        """One value per sample, classes as names; ``None`` if there is no such column."""
        return _values(self.table, name) if name in self.table.column_names else None


def _values(table: Any, name: str) -> list[Any]:
    """The cells of a column, classes as names and ``None`` for none."""
    names, values = getattr(table.features[name], "names", None), list(table[name])
    return values if names is None else [None if value in (None, -1) else names[value] for value in values]


def _categories(parts: Mapping[Split, Any], name: str, *, whole_numbers: bool) -> list[str] | None:
    """The values of a column of classes, texts or perhaps whole numbers, in order; ``None`` for other columns."""
    kind = parts["train"].features[name]
    if hasattr(kind, "names"):
        return list(kind.names)
    dtype = str(getattr(kind, "dtype", ""))
    if dtype.startswith("float") if whole_numbers else dtype not in ("string", "large_string", "bool"):
        return None
    values = {value for table in parts.values() for value in table.unique(name) if value is not None}
    return list(map(str, sorted(values, key=None if all(isinstance(value, int) for value in values) else str)))


def _codes(values: list[Any], categories: list[str]) -> np.ndarray[Any, Any]:
    """Numbers of the categories, int64 [n]; -1 for an empty cell."""
    import pandas as pd

    named = [None if value is None else str(value) for value in values]
    return pd.Categorical(named, categories=categories).codes.astype(np.int64)


def _numbers(table: Any, name: str, categories: list[str] | None) -> Tensor:
    """A column as inputs before normalisation, float64 [n, k]; texts and classes are one-hot, only 0 if empty."""
    values = _values(table, name)
    if categories is not None:
        return torch.from_numpy((_codes(values, categories)[:, None] == np.arange(len(categories))).astype(np.float64))
    try:
        cells = torch.from_numpy(np.asarray(values, dtype=np.float64)).reshape(len(values), -1)
    except (TypeError, ValueError) as error:
        raise DataError(f"column {name!r} does not hold numbers of one shape: add it to HFDataset.drop.") from error
    if not cells.isfinite().all():
        row = int((~cells.isfinite()).any(1).nonzero()[0])
        raise DataError(f"{name!r} of row {row} is empty or not finite: fill it, leave the row out or drop the column.")
    return cells
