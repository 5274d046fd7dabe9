"""``python -m lightning_fl``: the command line, also where its script is not on the path."""

import sys

from lightning_fl.cli import main

sys.exit(main())
