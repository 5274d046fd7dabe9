"""These tests need the group ``modules`` (``uv sync --group modules``); without it none is collected."""

import importlib.util

collect_ignore = [] if importlib.util.find_spec("pytorch_forecasting") else ["test_public_modules.py"]
