"""What `meson install` leaves is enough for somebody else's program: headers, library, pkg-config file."""

import json
import os
import shlex
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

CONSUMER = r"""
#include <headrace/headrace.hpp>

#include <cstdio>

headrace::task<void> print(headrace::model model) {
  auto tensors = model.stream();
  while (auto* t = co_await tensors.next()) {
    std::printf("%.*s %zu\n", static_cast<int>(t->name().size()), t->name().data(), t->bytes().size());
  }
}

int main(int, char** arguments) {
  headrace::runtime runtime;
  headrace::sync_wait(print(headrace::sync_wait(headrace::open(runtime, arguments[1]))));
}
"""


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, f"{shlex.join(map(str, command))}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def build_folder():
    cli = Path(os.environ.get("HEADRACE_CLI", ROOT / "build/cli/headrace"))
    folder = cli.resolve().parents[1]
    if not (folder / "build.ninja").exists():
        pytest.skip("needs a build folder")
    return folder


def test_an_installed_library_builds_a_program_by_pkg_config_alone(build_folder, tmp_path):
    meson = shutil.which("meson") or str(ROOT / ".venv/bin/meson")
    stage = tmp_path / "stage"
    run(meson, "install", "-C", build_folder, "--no-rebuild", "--quiet", "--destdir", stage)

    pc_file = next(stage.rglob("headrace.pc"))
    prefix = next(line for line in pc_file.read_text().splitlines() if line.startswith("prefix=")).partition("=")[2]
    flags = shlex.split(
        run(
            "pkg-config",
            f"--define-variable=prefix={stage}{prefix}",
            "--cflags",
            "--libs",
            "headrace",
            env={**os.environ, "PKG_CONFIG_PATH": str(pc_file.parent)},
        )
    )

    source = tmp_path / "consumer.cpp"
    source.write_text(CONSUMER)
    compiler = json.loads(run(meson, "introspect", "--compilers", build_folder))["host"]["cpp"]["exelist"]
    options = {one["name"]: one["value"] for one in json.loads(run(meson, "introspect", "--buildoptions", build_folder))}
    sanitizers = options["b_sanitize"] if isinstance(options["b_sanitize"], list) else [options["b_sanitize"]]
    sanitizers = ",".join(sanitizers).replace("none", "")
    sanitize = [f"-fsanitize={sanitizers}"] if sanitizers else []
    run(*compiler, "-std=c++20", *sanitize, source, "-o", tmp_path / "consumer", *flags)

    header = json.dumps({"w": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}}).encode()
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"abc")
    assert run(tmp_path / "consumer", tmp_path / "m.safetensors") == "w 3\n"
