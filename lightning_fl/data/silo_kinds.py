"""Kinds of data that one owner may have, recognised and converted to one form."""

from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset, IterableDataset, Subset

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.lightning_types import AnyDataModule, is_overridden
from lightning_fl.core.seeding import seed_default_generators
from lightning_fl.data.graphs import is_graph
from lightning_fl.data.loaders import as_loader, find_loader, holds_several, is_dataset, is_loader
from lightning_fl.data.module import SPLIT_NAMES, FederatedDataModule, Split


def is_splits(value: object) -> bool:
    """Whether a value is a dict of loaders or data sets by split, such as ``{"train": ..., "val": ...}``."""
    return isinstance(value, Mapping) and "train" in value and all(key in SPLIT_NAMES for key in value)


def are_silos(data: Sequence[Any]) -> bool:
    """Whether a list holds silos rather than samples; ``ConfigurationError`` if both are possible."""

    def is_silo(part: Any) -> bool:
        given = isinstance(part, AnyDataModule | Dataset) or is_loader(part)
        # Others with samples by number, such as those of Hugging Face; not arrays, which may be samples.
        own = is_dataset(part) and not isinstance(part, list | tuple) and not hasattr(part, "ndim")
        if given or own or not is_splits(part):
            return given or own
        return all(is_loader(one) or is_dataset(one) or holds_several(one) for one in part.values())

    found = [is_silo(part) for part in data]
    if any(found) and not all(found):
        kinds = sorted({type(part).__name__ for part in data})
        raise ConfigurationError(
            f"data is a list of {', '.join(kinds)}: give one data module, loader or data set per silo, or only samples."
        )
    if found and not found[0] and all(isinstance(part, list) for part in data):
        inner = [sample for part in data for sample in part]
        if inner and all(is_graph(sample) or isinstance(sample, tuple | dict) for sample in inner):
            return True
        raise ConfigurationError(
            "data is a list of lists, either samples or silos: give samples as tuples, or silos by name, such as"
            " {'north': [...], 'south': [...]}."
        )
    return bool(found) and found[0]


class Silo:
    """One owner's data in one form, whatever it brought: by split a data set, a loader, several of these, or none.

    Args:
        name: name of the owner, for messages.
        given: a data module, a loader, a data set, or a dict of the latter two (or of several) by split.

    ``module`` is the data module, whose hooks see the batches; ``undivided`` a data set with a length that has no
    splits yet; ``has_datasets`` tells whether batches are made from a data set here, not by a loader.
    """

    def __init__(self, name: str, given: Any) -> None:
        if isinstance(given, FederatedDataModule):
            raise ConfigurationError(
                f"{name}: {type(given).__name__} has clients itself: use it directly, or give ordinary data modules."
            )
        self.name = name
        self.module: LightningDataModule | None = given if isinstance(given, AnyDataModule) else None
        self.has_datasets = False
        self._called: set[str] = set()
        self._given = {} if self.module is not None else self._by_split(given)
        whole = not isinstance(given, Mapping) and is_dataset(given) and not isinstance(given, IterableDataset)
        self.undivided: Any = given if whole else None

    def _by_split(self, given: Any) -> dict[Split, Any]:
        if holds_several(given) if not isinstance(given, Mapping) else not is_splits(given):
            names = f" of {', '.join(map(str, given))}" if isinstance(given, Mapping) else f" of {len(given)}"
            raise ConfigurationError(
                f"{self.name}: the data are a {type(given).__name__}{names}: give a dict by split, such as {{'train':"
                " ..., 'val': ..., 'test': ...}; a split may have a list of several loaders or data sets."
            )
        parts = given if isinstance(given, Mapping) else {"train": given}
        return {SPLIT_NAMES[key]: self._checked(SPLIT_NAMES[key], part) for key, part in parts.items()}

    def _checked(self, split: Split, part: Any) -> Any:
        self.has_datasets |= any(map(is_dataset, tree_leaves(part) if holds_several(part) else [part]))
        if part is None or holds_several(part) or is_dataset(part):
            return part
        source = f"{self.name}: the {split} data are"
        if is_loader(part):
            return as_loader(part, split, source)
        raise ConfigurationError(
            f"{source} a {type(part).__name__}: give a LightningDataModule, an iterable of batches, or a data set."
        )

    def divide(self, parts: Mapping[Split, Tensor]) -> None:
        self._given = {split: Subset(self.undivided, part.tolist()) for split, part in parts.items() if len(part)}
        self.undivided = None

    def call(self, hook: str, *arguments: Any, seed: tuple[int | str, ...] = ()) -> None:
        """Call ``prepare_data`` or ``setup`` of the data module, once for each argument; errors name the owner.

        Random splits that a data module draws in ``setup`` depend on the seed only, and are the same for every stage.
        """
        if self.module is None or (key := " ".join((hook, *arguments))) in self._called:
            return
        try:
            with isolate_rng(include_cuda=False):
                if seed:
                    seed_default_generators(*seed)  # type: ignore[arg-type]
                getattr(self.module, hook)(*arguments)
        except Exception as error:
            error.add_note(f"This came from {type(self.module).__name__}.{hook} of {self.name}.")
            raise
        self._called.add(key)

    def has(self, split: Split) -> bool:
        """Whether there may be data in a split; nothing is opened."""
        if self.module is None:
            return self._given.get(split) is not None
        return is_overridden(f"{split}_dataloader", self.module)

    def part(self, split: Split) -> Any:
        return self._given.get(split) if self.module is None else find_loader(self.module, split)

    def teardown(self, stage: str | None) -> None:
        if self.module is not None and self._called:
            self.module.teardown(stage)  # type: ignore[arg-type]
