"""``self.trainer.datamodule``: the data module of the client whose turn it is, as its module knows it."""

from typing import Any

__all__ = ["ClientDataModule"]


class ClientDataModule:
    """An ordinary data module with one client's loaders.

    Attributes and methods are those of the data module that the client's data come from: its own in ``Silos``, the one
    that was divided in ``Partitioned``; what that lacks, the federated data module's. It counts as one of its class.

    Args:
        own: that data module.
        federated: the federated one.
        trainer: the module's, which has the loaders.
    """

    def __init__(self, own: Any, federated: Any, trainer: Any) -> None:
        vars(self).update(_own=own, _federated=federated, _trainer=trainer)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._own)

    def train_dataloader(self) -> Any:
        """The client's training loader."""
        return self._trainer.loader("train", "datamodule.train_dataloader()")

    def val_dataloader(self) -> Any:
        """The client's validation loader."""
        return self._trainer.loader("val", "datamodule.val_dataloader()")

    def test_dataloader(self) -> Any:
        """The client's test loader."""
        return self._trainer.loader("test", "datamodule.test_dataloader()")

    def predict_dataloader(self) -> Any:
        """The loader that the client predicts."""
        return self._trainer.loader("predict", "datamodule.predict_dataloader()")

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._own.__reduce_ex__(protocol)  # a copy is one of the data module

    def __getattr__(self, name: str) -> Any:
        if "_own" not in vars(self):
            raise AttributeError(name)
        own, federated = self._own, self._federated
        if own is not federated and not hasattr(own, name) and hasattr(federated, name):
            return getattr(federated, name)
        return getattr(own, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._own, name, value)
