"""Build the zipapp: rmqctl with its libraries in one file, for hosts that have Python and no network.

    python packaging/build_zipapp.py DEST

Packs the wheel in DEST with the versions of constraints.txt. The file runs with the minor release of Python that built it.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipapp
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PACKED: Final = "packed"


def build(dest: Path) -> Path:
    """Build the zipapp from the newest wheel in ``dest``. Return its path, beside the wheel."""
    wheels = sorted(dest.glob("rmqctl-*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        sys.exit(f"error: there is no wheel in {dest}: run make wheel first")
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    with tempfile.TemporaryDirectory(prefix="rmqctl-zipapp-") as name:
        root = Path(name)
        packed = root / PACKED
        words = ("install", "--quiet", "--no-compile", "--only-binary", ":all:", "-c", ROOT / "constraints.txt")
        subprocess.run([sys.executable, "-m", "pip", *words, "--target", packed, wheels[-1]], check=True)
        shutil.rmtree(packed / "bin")
        for origin in packed.glob("*.dist-info/direct_url.json"):
            origin.unlink()  # a path of this machine
        text = Path(__file__).with_name("zipapp_main.py").read_text()
        (root / "__main__.py").write_text(text.replace("@PYTHON@", python).replace("@ID@", _digest(packed)))
        target = dest / f"rmqctl-py{python.replace('.', '')}.pyz"
        zipapp.create_archive(root, target, interpreter=f"/usr/bin/env python{python}", compressed=True)
    target.chmod(0o755)
    return target


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    print(build(Path(sys.argv[1])))
