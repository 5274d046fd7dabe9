"""Every public module does what the table in ``docs/public_modules.md`` says of it."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import public  # noqa: F401  (registers the cases)
import pytest
from harness import CASES, try_case

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", CASES)
def test_module(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    try:
        case.version  # noqa: B018
    except PackageNotFoundError:
        pytest.skip(f"needs {case.package}: uv sync --group modules")
    outcome = try_case(name, tmp_path)
    assert outcome.plain == "yes"
    if case.fails is not None:
        assert case.fails in outcome.federated
        return
    assert outcome.federated == "yes"
    if case.differs is None:
        assert outcome.one_client.startswith("yes")
    else:
        assert outcome.difference is not None
        assert outcome.difference < case.atol
