"""These tests need the packages of the group ``modules`` (``uv sync --group modules``); without them none is collected."""

import importlib.util

collect_ignore = [] if importlib.util.find_spec("pytorch_forecasting") else ["test_public_modules.py"]
