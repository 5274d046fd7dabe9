"""Private names of Lightning, which may change in any release, stand in one place each."""

import ast
from collections import defaultdict
from pathlib import Path

import lightning_fl


def test_each_is_imported_in_one_file() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for path in Path(lightning_fl.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lightning."):
                for name in node.names:
                    if name.name.startswith("_"):
                        found[name.name].add(path.name)
    assert len(found) > 10
    assert {name: files for name, files in found.items() if len(files) > 1} == {}
