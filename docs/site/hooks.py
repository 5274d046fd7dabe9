"""Pages of the site that no file holds: notebooks with their results, and the reference from the package itself."""

import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))

import notebooks
import reference


@event_priority(100)
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and for every notebook its page, its pictures and itself to download."""
    for path, text in {**reference.pages(), **_of_the_repository()}.items():
        files.append(File.generated(config, path, content=text))
    sources = [file for file in files if file.src_uri.endswith(".ipynb")]
    for source, executed in zip(sources, notebooks.execute([Path(file.abs_src_path) for file in sources]), strict=True):
        files.append(File.generated(config, source.src_uri.replace(".ipynb", ".md"), content=executed.markdown))
        for name, data in executed.pictures.items():
            files.append(File.generated(config, f"{Path(source.src_uri).parent}/{name}", content=data))
    return files


def _of_the_repository() -> dict[str, str]:
    """The files at the repository's top that are pages, too; their links begin there."""
    pages = {}
    for page, name in (("security", "SECURITY"), ("changes", "CHANGELOG"), ("contributing", "CONTRIBUTING")):
        text = (Path(__file__).parents[2] / f"{name}.md").read_text(encoding="utf-8")
        text = text.replace("](docs/", "](../")
        pages[f"project/{page}.md"] = re.sub(r"\[(`[^`]*`)\]\((?:lightning_fl|benchmarks|tests)/[^)]*\)", r"\1", text)
    return pages
