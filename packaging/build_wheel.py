"""Build the wheel: one file for Python 3.11 and later, whose kernel runs with glibc 2.17 and later.

    python packaging/build_wheel.py [--target TARGET] [--platform TAG] DEST

Cargo links with zig, which knows the symbols of old glibc releases; auditwheel then names the wheel after what the kernel
really needs, and abi3audit checks that it keeps to Python's stable interface. Needs cargo and packaging/requirements.txt.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

import ziglang

ROOT: Final = Path(__file__).resolve().parents[1]
LIMITED_API: Final = "cp311"
MOST_BYTES: Final = 2 << 20
_SOURCES: Final = ("pyproject.toml", "README.md", "LICENSE", "pyspark_rmqctl.py", "rmqctl", "store_core")
_LEAVINGS: Final = shutil.ignore_patterns("__pycache__", "*.so", "target", "*.egg-info")


def build(dest: Path, target: str, platform: str) -> Path:
    """Build and check the wheel for a target of cargo-zigbuild's, whose tag is ``platform``. Return its path in ``dest``."""
    with tempfile.TemporaryDirectory(prefix="rmqctl-wheel-") as name:
        folder = Path(name)
        plain = _compiled(_copied(folder / "source"), folder, target)
        repaired = folder / "repaired"
        _run("auditwheel", "repair", "--plat", platform, "--only-plat", "--wheel-dir", repaired, plain)
        [wheel] = repaired.glob("*.whl")
        _run("abi3audit", "--strict", wheel)
        _check(wheel, platform)
        dest.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(wheel, dest))


def _copied(source: Path) -> Path:
    """Copy what belongs into the wheel: a build in place would take up what earlier builds left."""
    source.mkdir()
    for name in _SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=_LEAVINGS)
        else:
            shutil.copy(ROOT / name, source)
    return source


def _compiled(source: Path, folder: Path, target: str) -> Path:
    settings = folder / "limited.cfg"
    settings.write_text(f"[bdist_wheel]\npy_limited_api = {LIMITED_API}\n")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    environment = {
        "CARGO": "cargo-zigbuild",
        "CARGO_BUILD_TARGET": target,
        "CARGO_TARGET_DIR": str(cache / "rmqctl" / "wheel-target"),
        "CARGO_ZIGBUILD_ZIG_PATH": str(Path(ziglang.__file__).with_name("zig")),
        "DIST_EXTRA_CONFIG": str(settings),
    }
    words = ("pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder / "plain", source)
    _run(*words, **environment)
    [wheel] = (folder / "plain").glob("*.whl")
    return wheel


def _check(wheel: Path, platform: str) -> None:
    if f"-{LIMITED_API}-abi3-" not in wheel.name or not wheel.name.endswith(f"{platform}.whl"):
        sys.exit(f"error: {wheel.name} is not a wheel for {LIMITED_API}-abi3 and {platform}")
    with zipfile.ZipFile(wheel) as archive:
        if "store_core/kernel/_native.abi3.so" not in archive.namelist():
            sys.exit("error: the wheel holds no kernel: run pip wheel with -v and see why cargo failed")
    if (size := wheel.stat().st_size) > MOST_BYTES:
        sys.exit(f"error: the wheel has {size:,} bytes, more than {MOST_BYTES:,}")


def _run(tool: str, *words: str | Path, **environment: str) -> None:
    """Run a tool of this environment, which need not be the active one."""
    folder = Path(sys.executable).parent
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    program = [sys.executable, "-m", "pip"] if tool == "pip" else [folder / tool]
    subprocess.run([*program, *words], check=True, env={**os.environ, "PATH": path, **environment})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build the wheel.")
    parser.add_argument("dest", type=Path)
    parser.add_argument("--target", default="x86_64-unknown-linux-gnu.2.17")
    parser.add_argument("--platform", default="manylinux_2_17_x86_64")
    asked = parser.parse_args()
    print(build(asked.dest, asked.target, asked.platform))
