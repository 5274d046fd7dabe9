"""``lightning-fl fit``, imported and with its parser made: what the server holds from which workers are forked.

What most runs import only when they come to it is imported here as well, once instead of once a run.
"""

import sklearn.datasets
import torch.utils.tensorboard  # noqa: F401 - see above

import lightning_fl.report  # noqa: F401 - see above
from lightning_fl.cli import make_parser

__all__ = ["PARSER"]

PARSER = make_parser("fit")
