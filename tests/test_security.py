"""What SECURITY.md promises of the whole package: nothing that is read or received is executed."""

import ast
from importlib import import_module
from pathlib import Path

import pytest
import yaml

import lightning_fl

PACKAGE = Path(lightning_fl.__file__).parent
#: torchvision has compared the sums of what is unpickled there.
UNPICKLES = {PACKAGE / "data" / "images" / "sources.py"}
#: All files of tensors and arrays are read there.
READER = PACKAGE / "files" / "tensors.py"
#: The package's own processes that parse SMILES answer with arrays.
CODES = PACKAGE / "data" / "molecules" / "codes.py"
SAFELY = {"torch.load": {"weights_only": True}, "np.load": {"allow_pickle": False}}
NEVER = (
    *("pickle.loads", "pickle.Unpickler", "marshal.loads", "joblib.load", "yaml.unsafe_load", "yaml.full_load"),
    *("eval", "exec", "os.system", "pd.read_pickle", "dist.all_gather_object", "dist.broadcast_object_list"),
    *("shutil.unpack_archive", "torch.jit.load", "torch.hub.load", "numpy.load"),
)


def calls(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def found():
    return [(path, name, node) for path in sorted(PACKAGE.rglob("*.py")) for name, node in calls(path)]


@pytest.mark.slow
def test_nothing_that_is_read_is_executed():
    everything = found()
    assert len(everything) > 5000
    readers = {(READER, "torch.load"), (READER, "np.load"), (CODES, "np.load")}
    assert {(path, name) for path, name, _ in everything if name in SAFELY} == readers
    for path, name, node in everything:
        where = f"{path.relative_to(PACKAGE)}:{node.lineno}: {name}"
        given = {word.arg: getattr(word.value, "value", None) for word in node.keywords}
        assert SAFELY.get(name, {}).items() <= given.items(), where
        assert name not in NEVER, where
        assert not name.endswith(("_gather_object", "_object_list")), where
        assert name != "pickle.load" or path in UNPICKLES, where
        if name == "yaml.load":
            module = import_module(".".join(("lightning_fl", *path.relative_to(PACKAGE).with_suffix("").parts)))
            names = [one.id for one in ast.walk(node.args[1]) if isinstance(one, ast.Name) and "Loader" in one.id]
            assert names, where
            for loader in (getattr(module, one) for one in names):
                assert issubclass(loader, yaml.constructor.SafeConstructor), where
                assert not issubclass(loader, yaml.constructor.FullConstructor), where  # derives from the safe one
