"""`pip install .`: a wheel that stands on its own."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# What every Linux system has, and what no static library can replace.
ALLOWED = {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "libpthread.so.0", "libdl.so.2"}


@pytest.fixture(scope="session")
def installed(tmp_path_factory) -> Path:
    """A folder into which the wheel has been unpacked. The build folder is kept: a second run builds what changed."""
    made = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [
            sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index",
            f"--config-settings=build-dir={ROOT / 'build-wheel'}", "--wheel-dir", made, ROOT,
        ],
        capture_output=True, text=True, timeout=3000,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (wheel,) = made.glob("headrace-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(made / "site")
    return made / "site"


def run(installed: Path, code: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True, text=True, timeout=120, cwd=installed, env={**os.environ, "PYTHONPATH": str(installed)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_streams_and_holds_the_command_line(installed, small):
    code = "import sys, headrace; print(headrace.__file__, sum(tensor.nbytes for tensor in headrace.stream(sys.argv[1])))"
    assert run(installed, code, small) == f"{installed}/headrace/__init__.py {4096 + 128 + 80}\n"
    assert (installed / "headrace/py.typed").exists()
    assert "headrace = headrace.__main__:main" in next(installed.glob("*.dist-info/entry_points.txt")).read_text()


def test_everything_native_is_inside_and_unseen(installed):
    (module,) = installed.glob("headrace/_core.*.so")
    headers = subprocess.run(["objdump", "-p", module], capture_output=True, text=True, check=True).stdout
    needed = {line.split()[1] for line in headers.splitlines() if "NEEDED" in line}
    assert needed <= ALLOWED
    symbols = subprocess.run(["nm", "-D", "--defined-only", module], capture_output=True, text=True, check=True).stdout
    assert [line.split()[-1] for line in symbols.splitlines()] == ["PyInit__core"]


def test_only_the_package_is_in_it(installed):
    assert {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")} == {"headrace"}
