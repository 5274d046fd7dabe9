"""Several sets of images as domains of one task: every client's images come from one of them (feature shift)."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.seeding import generator
from lightning_fl.core.validation import check_counts
from lightning_fl.data.cards.lookup import Source, rank_zero_warn
from lightning_fl.data.images.dataset import ImageDataset, check_geometry
from lightning_fl.data.images.module import SharedImages
from lightning_fl.data.images.origin import ImageOrigin
from lightning_fl.data.images.standin import RENDERINGS, digits_domain
from lightning_fl.data.partition import Partitioner, apportion
from lightning_fl.data.partition.stratified import stratified_parts
from lightning_fl.data.shared import OpenedData

__all__ = ["DomainPartition", "ImageDomains"]

MissingPolicy = Literal["refuse", "skip"]
MISSING_POLICIES: tuple[MissingPolicy, ...] = ("refuse", "skip")


class DomainPartition(Partitioner):
    """Every domain's samples among its own clients, in equal parts; the data set has a column ``domain``.

    Args:
        clients: name of a domain to the number of its clients, in their order. A domain without samples has none.
        stratified: the parts of a domain have its classes in the same proportions.
    """

    def __init__(self, *, clients: Mapping[str, int], stratified: bool) -> None:
        self.clients = dict(clients)
        self.stratified = stratified

    def __call__(self, dataset: Dataset, seed: int) -> list[Tensor]:
        """Share out domain by domain."""
        assert isinstance(dataset, ImageDataset)
        domains = dataset.column("domain")
        members: dict[str, list[int]] = {}
        for index, domain in enumerate(domains):
            members.setdefault(str(domain), []).append(index)
        parts: list[Tensor] = []
        self.names = []
        for domain, count in self.clients.items():
            if domain not in members:
                continue
            own = torch.tensor(members[domain])
            sizes = apportion(len(own), [1.0] * count)
            rng = generator(seed, "domain", domain)
            if self.stratified:
                shares = stratified_parts(dataset.targets[own], sizes, rng)
            else:
                shares = list(torch.randperm(len(own), generator=rng).split(sizes))
            parts += [own[share].sort().values for share in shares]
            self.names += [f"{domain}_{client}" for client in range(count)]
        return parts


class ImageDomains(SharedImages):
    """Clients whose images come from one of several data sets with the same classes, such as five kinds of digits.

    Training and test parts of a data set are put together; a client's images are divided by ``split``.

    With ``source`` ``"auto"``, where none of the data sets is to be had, and with ``"standin"``, all domains show
    scikit-learn's digits, the first as they are, the others inverted, on coloured noise, blurred, coloured and shaded
    (:data:`~lightning_fl.data.images.standin.RENDERINGS`).

    Args:
        domains: at least two names of cards or paths of cards or of ``.npz`` files.
        clients_per_domain: clients of every domain; one number for all or one for each.
        samples_per_client: images of a client, validation and test images among them, drawn at random (stratified if
            ``stratified``); ``None`` for equal parts of all.
        size: all images are resized to ``size`` x ``size`` pixels.
        channels: 3 for colours (grey images get three equal channels), 1 for grey.
        missing: what happens if some of the data sets are not to be had: ``"refuse"`` to go on, or ``"skip"`` them with
            a warning as long as two are left.
        source: ``"real"``, ``"auto"`` or ``"standin"``.
        data_root: folder in which images are looked for first.
        stratified: keep the proportions of the classes in every choice and division.
        **kwargs: ``normalize``, ``mean``, ``std`` (of the images of all domains) and ``augment`` of
            :class:`~lightning_fl.data.images.module.SharedImages`; ``split``, ``split_seed``, ``division``,
            ``folds``, ``fold``, ``train_shares``, ``batch_size``, ``eval_batch_size``, ``shuffle`` and ``drop_last`` of
            :class:`~lightning_fl.data.shared.SharedDataModule`.

    Raises:
        DataError: from ``prepare_data`` and ``setup``, if data are missing, damaged or too few, or classes differ.

    Example:
        >>> data = ImageDomains(domains=["mnist", "usps", "svhn"], samples_per_client=200, size=28, source="standin")
        >>> data.num_clients
        3
    """

    size: int
    channels: int

    def __init__(
        self,
        *,
        domains: list[str],
        clients_per_domain: int | list[int] = 1,
        samples_per_client: int | None = None,
        size: int = 28,
        channels: int = 3,
        missing: MissingPolicy = "refuse",
        source: Source = "auto",
        data_root: str | None = None,
        stratified: bool = False,
        **kwargs: Any,
    ) -> None:
        check_geometry(self, size, channels)
        if missing not in MISSING_POLICIES:
            raise ConfigurationError(f"missing={missing!r}: expected one of {', '.join(MISSING_POLICIES)}.")
        check_counts(self, samples_per_client=samples_per_client, mend=", or null for all")
        check_counts(self, clients_per_domain=clients_per_domain)
        counts = [clients_per_domain] * len(domains) if isinstance(clients_per_domain, int) else clients_per_domain
        if len(counts) != len(domains) or not all(count >= 1 for count in counts):
            raise ConfigurationError(
                f"clients_per_domain={clients_per_domain} for {len(domains)} domains: give one number of at least 1, or"
                " one for each domain."
            )
        origins = [ImageOrigin.of(name, data_root=None if name.endswith(".npz") else data_root) for name in domains]
        names = [origin.short_name for origin in origins]
        if len(names) < 2 or len(set(names)) < len(names):
            raise ConfigurationError(f"domains={domains}: name two or more data sets, all different.")
        partitioner = DomainPartition(clients=dict(zip(names, counts, strict=True)), stratified=stratified)
        if missing == "refuse":
            partitioner.num_clients = sum(counts)
        super().__init__(partitioner=partitioner, stratified=stratified, **kwargs)
        self.origins = dict(zip(names, origins, strict=True))
        self.clients = partitioner.clients
        self.samples_per_client = samples_per_client
        self.size = size
        self.channels = channels
        self.missing = missing
        self.source_choice: Source = source

    def client_groups(self) -> list[str]:
        """The domain of each client."""
        return [name.rpartition("_")[0] for name in self.client_names()]

    def _open(self, *, allow_download: bool) -> OpenedData:
        images, source, records = self._read(allow_download)
        classes = max((part.classes for part in images.values()), key=len)
        prepared = [self._prepared(domain, part, classes) for domain, part in images.items()]
        joined = ImageDataset.joined(prepared, place="the images of all domains")
        record = {
            "title": ", ".join(images) if source != "stand-in" else f"STAND-IN (digits) for {', '.join(images)}",
            "domains": records,
            "samples_per_client": self.samples_per_client,
        }
        return self._opened_images({"train": joined}, lambda: joined.images, source, record)

    def newcomer_data(self, path: str, record: Mapping[str, Any]) -> TensorDataset:
        """A ``.npz`` file in MedMNIST's layout, all its parts together: a domain of its own."""
        return self._newcomer(path, record, size=self.size, channels=self.channels)

    def _read(self, allow_download: bool) -> tuple[dict[str, ImageDataset], str, dict[str, Any]]:
        """All images of the domains that are used, where they come from, and the record of each."""
        if self.source_choice == "standin":
            return self._standins("")
        found, failures = {}, {}
        for domain, origin in self.origins.items():
            try:
                found[domain] = origin.find(allow_download=allow_download)
            except DataError as error:
                failures[domain] = str(error)
        if failures and not found and self.source_choice == "auto":
            reason = next(iter(failures.values()))
            return self._standins(f" Set source to 'real' to refuse this. The reason: {reason}")
        if failures and (self.missing == "refuse" or len(found) < 2):
            mend = "" if len(found) < 2 else " To go on with the others, set missing to 'skip'."
            raise DataError(
                f"{len(failures)} of {len(self.origins)} domains are not to be had ({', '.join(failures)}):"
                f" {next(iter(failures.values()))}{mend}"
            )
        if failures:
            rank_zero_warn(
                f"{', '.join(failures)} left out, going on with {', '.join(found)}. The reason:"
                f" {next(iter(failures.values()))}"
            )
        images, records = {}, {}
        for domain, files in found.items():
            read = self.origins[domain].read_found(files)
            images[domain] = ImageDataset.joined(list(read.parts.values()), place=f"domain {domain}")
            records[domain] = read.record | {"images": len(images[domain])}
        return images, "measured", records

    def _standins(self, reason: str) -> tuple[dict[str, ImageDataset], str, dict[str, Any]]:
        rank_zero_warn(
            "STAND-IN DATA: scikit-learn's digits in several renderings. The run's figures say nothing about"
            f" {', '.join(self.origins)}.{reason}"
        )
        images = {domain: digits_domain(index, size=self.size) for index, domain in enumerate(self.origins)}
        records = {domain: {"rendering": name} for domain, name in zip(images, RENDERINGS, strict=False)}
        return images, "stand-in", records

    def _prepared(self, domain: str, part: ImageDataset, classes: list[str]) -> ImageDataset:
        """A domain's images that are used, in the common shape."""
        if part.classes != classes[: len(part.classes)]:
            raise DataError(
                f"domain {domain} has the classes {', '.join(part.classes[:5])}, ..., another domain"
                f" {', '.join(classes[:5])}, ...: domains of one task have the same classes in the same order."
            )
        if self.samples_per_client is not None:
            wanted = self.samples_per_client * self.clients[domain]
            if wanted > len(part):
                raise DataError(
                    f"domain {domain} has {len(part):,} images, {self.clients[domain]} clients with"
                    f" samples_per_client={self.samples_per_client} need {wanted:,}: take fewer."
                )
            rng = generator(self.partition_seed, "samples_per_client", domain)
            if self.stratified:
                (chosen,) = stratified_parts(part.targets, [wanted], rng)
            else:
                chosen = torch.randperm(len(part), generator=rng)[:wanted].sort().values
            part = part.select(chosen)
        part = part.converted(size=self.size, channels=self.channels)
        return ImageDataset(
            part.images, part.targets, classes=classes, columns={"domain": [domain] * len(part)}, place=part.place
        )
