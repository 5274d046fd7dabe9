"""Several sets of images as domains of one task, with each client's images from one of them (feature shift)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.seeding import generator
from lightning_fl.core.validation import Count, checked
from lightning_fl.data.cards.lookup import Source
from lightning_fl.data.images.dataset import ImageDataset
from lightning_fl.data.images.module import ImageOrigin, SharedImages
from lightning_fl.data.images.standin import RENDERINGS, digits_domain
from lightning_fl.data.partition import Partitioner, apportion
from lightning_fl.data.partition.classes import random_parts
from lightning_fl.data.shared import OpenedData


class DomainPartition(Partitioner):
    """Equal parts, ``stratified`` or not, of every domain's samples for its clients; needs a column ``domain``."""

    def __init__(self, *, clients: Mapping[str, int], stratified: bool) -> None:
        self.clients = dict(clients)
        self.num_clients = sum(clients.values())
        self.stratified = stratified

    def __call__(self, dataset: Dataset, seed: int) -> list[Tensor]:
        assert isinstance(dataset, ImageDataset)
        domains = dataset.column("domain")
        parts: list[Tensor] = []
        self.names = []
        for domain, count in self.clients.items():
            own = torch.tensor([index for index, name in enumerate(domains) if name == domain])
            sizes = apportion(len(own), [1.0] * count)
            rng = generator(seed, "domain", domain)
            labels = dataset.targets[own] if self.stratified else None
            parts += [own[part] for part in random_parts(len(own), sizes, rng, labels)]
            self.names += [f"{domain}_{client}" for client in range(count)]
        return parts


class ImageDomains(SharedImages):
    """Clients with images from one of several data sets of the same classes, such as five kinds of digits.

    Training and test parts of a data set are joined; ``split`` divides a client's images.

    With ``source="standin"``, or ``"auto"`` if none of the data sets is available, all domains show scikit-learn's
    digits: plain, inverted, on coloured noise, blurred, coloured and shaded
    (:data:`~lightning_fl.data.images.standin.RENDERINGS`).

    Args:
        domains: two or more names of cards, or paths of cards or ``.npz`` files; six at most as stand-ins.
        clients_per_domain: clients of every domain; one number for all or one for each.
        samples_per_client: images of a client, including validation and test images, drawn at random (stratified if
            ``stratified``); ``None`` for equal parts of all.
        size: resize all images to ``size`` x ``size`` pixels.
        channels: 3 for colours (grey images get three equal channels), 1 for grey.
        source: ``"real"``, ``"auto"`` or ``"standin"``.
        data_root: folder in which images are looked for first.
        stratified: keep the proportions of the classes in every choice and division.
        **kwargs: arguments of :class:`~lightning_fl.data.images.module.SharedImages`, except ``partitioner``.

    Example:
        >>> data = ImageDomains(domains=["mnist", "usps", "svhn"], samples_per_client=200, size=28, source="standin")
        >>> data.num_clients
        3
    """

    size: int
    channels: int

    @checked
    def __init__(
        self,
        *,
        domains: list[str],
        clients_per_domain: Count | list[Count] = 1,
        samples_per_client: Count | None = None,
        size: Count = 28,
        channels: Literal[1, 3] = 3,
        source: Source = "auto",
        data_root: str | None = None,
        stratified: bool = False,
        **kwargs: Any,
    ) -> None:
        counts = [clients_per_domain] * len(domains) if isinstance(clients_per_domain, int) else clients_per_domain
        if len(counts) != (count := len(domains)):
            option = f"clients_per_domain={clients_per_domain}"
            raise ConfigurationError(f"{option}: give one number, or one for each of the {count} domains.")
        origins = [ImageOrigin.of(name, data_root=None if name.endswith(".npz") else data_root) for name in domains]
        names = [origin.short_name for origin in origins]
        if len(names) < 2 or len(set(names)) < len(names):
            raise ConfigurationError(f"domains={domains}: name two or more distinct data sets.")
        partitioner = DomainPartition(clients=dict(zip(names, counts, strict=True)), stratified=stratified)
        super().__init__(partitioner=partitioner, stratified=stratified, **kwargs)
        self.origins = dict(zip(names, origins, strict=True))
        self.clients = partitioner.clients
        self.samples_per_client = samples_per_client
        self.size = size
        self.channels = channels
        self.source_choice: Source = source

    def client_groups(self) -> list[str]:
        return [name.rpartition("_")[0] for name in self.client_names()]

    def _open(self, *, allow_download: bool) -> OpenedData:
        images, source, records = self._read(allow_download)
        classes = max((part.classes for part in images.values()), key=len)
        prepared = [self._prepare(domain, part, classes) for domain, part in images.items()]
        joined = ImageDataset.joined(prepared, place="the images of all domains")
        record = {
            "title": ", ".join(images) if source != "stand-in" else f"STAND-IN (digits) for {', '.join(images)}",
            "domains": records,
            "samples_per_client": self.samples_per_client,
        }
        return self._opened_images({"train": joined}, joined, source, record)

    def _read(self, allow_download: bool) -> tuple[dict[str, ImageDataset], str, dict[str, Any]]:
        """Read all images of the domains in use, their source, and a record of each."""
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
            return self._standins(f" Set source to 'real' to make this an error. Reason: {reason}")
        if failures:
            what = f"{len(failures)} of {len(self.origins)} domains are not available ({', '.join(failures)})"
            raise DataError(f"{what}: {next(iter(failures.values()))}")
        images, records = {}, {}
        for domain, files in found.items():
            read = self.origins[domain].read_found(files)
            images[domain] = ImageDataset.joined(list(read.datasets.values()), place=f"domain {domain}")
            records[domain] = read.record | {"images": len(images[domain])}
        return images, "measured", records

    def _standins(self, reason: str) -> tuple[dict[str, ImageDataset], str, dict[str, Any]]:
        what = f"The run's results say nothing about {', '.join(self.origins)}.{reason}"
        rank_zero_warn(f"STAND-IN DATA: scikit-learn's digits in several renderings. {what}")
        images = {domain: digits_domain(index, size=self.size) for index, domain in enumerate(self.origins)}
        records = {domain: {"rendering": name} for domain, name in zip(images, RENDERINGS, strict=False)}
        return images, "stand-in", records

    def _prepare(self, domain: str, part: ImageDataset, classes: Sequence[str]) -> ImageDataset:
        if part.classes != classes[: len(part.classes)]:
            given = f"{', '.join(part.classes[:5])}, ..., but another domain {', '.join(classes[:5])}, ..."
            raise DataError(f"domain {domain} has the classes {given}: all need the same classes in the same order.")
        if self.samples_per_client is not None:
            wanted = self.samples_per_client * self.clients[domain]
            if wanted > len(part):
                needed = f"clients with samples_per_client={self.samples_per_client} need {wanted:,}"
                raise DataError(f"domain {domain} has {len(part):,} images, but its {needed}: decrease it.")
            rng = generator(self.partition_seed, "samples_per_client", domain)
            (chosen,) = random_parts(len(part), [wanted], rng, part.targets if self.stratified else None)
            part = part.select(chosen)
        part = self._converted(part)
        return replace(part, classes=classes, columns={"domain": [domain] * len(part)})
