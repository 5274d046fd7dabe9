"""``lightning-fl fit``, imported and with its parser made: what the server holds from which workers are forked."""

from lightning_fl.cli import make_parser

__all__ = ["PARSER"]

PARSER = make_parser("fit")
