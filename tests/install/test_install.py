"""What `meson install` leaves is enough for somebody else's program: headers, libraries, pkg-config file, CMake package."""

import json
import os
import re
import shlex
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONSUMER = Path(__file__).resolve().parent / "consumer"
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"]


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, f"{shlex.join(map(str, command))}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def meson_program():
    return shutil.which("meson") or str(ROOT / ".venv/bin/meson")


class Installed:
    """A build folder's installation under a stage of its own: not where it was configured to be, so it must be relocatable."""

    def __init__(self, build, stage):
        self.build = build
        run(meson_program(), "install", "-C", build, "--no-rebuild", "--quiet", "--destdir", stage)
        self.pkgconfig = next(stage.rglob("headrace.pc")).parent
        self.libraries = self.pkgconfig.parent
        self.prefix = next(stage.rglob("include/headrace")).parents[1]
        self.include = self.prefix / "include"
        options = {one["name"]: one["value"] for one in json.loads(run(meson_program(), "introspect", "--buildoptions", build))}
        self.compiler = json.loads(run(meson_program(), "introspect", "--compilers", build))["host"]["cpp"]["exelist"]
        sanitizers = options["b_sanitize"] if isinstance(options["b_sanitize"], list) else [options["b_sanitize"]]
        sanitizers = ",".join(sanitizers).replace("none", "")
        self.sanitize = [f"-fsanitize={sanitizers}"] if sanitizers else []
        self.kinds = [
            kind for kind, name in (("shared", "libheadrace.so"), ("static", "libheadrace.a")) if (self.libraries / name).exists()
        ]

    def environment(self, compiler):
        """For build systems: where the package is, and with what to compile."""
        return {
            **os.environ,
            "PKG_CONFIG_PATH": str(self.pkgconfig),
            "CMAKE_PREFIX_PATH": str(self.prefix),
            "CXX": shlex.join(compiler),
            "CXXFLAGS": shlex.join(self.sanitize),
            "LDFLAGS": shlex.join(self.sanitize),
        }

    def flags(self, *packages, static=False):
        """What pkg-config says, and nothing else; the last ones make the program find our shared library where it lies."""
        more = ["--static"] if static else []
        said = shlex.split(run("pkg-config", "--cflags", "--libs", *more, *packages, env=self.environment(self.compiler)))
        if static:  # the static library where both are there
            said = [f"-l:lib{one[2:]}.a" if one.startswith("-lheadrace") else one for one in said]
        return [*said, f"-Wl,-rpath,{self.libraries}"]


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    cli = Path(os.environ.get("HEADRACE_CLI", ROOT / "build/cli/headrace"))
    folder = cli.resolve().parents[1]
    if not (folder / "build.ninja").exists():
        pytest.skip("needs a build folder")
    return Installed(folder, tmp_path_factory.mktemp("stage"))


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A file of one tensor; consumers print "w 3"."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}}).encode()
    path = tmp_path_factory.mktemp("checkpoint") / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"abc")
    return path


def compilers(installed):
    """The compiler of the build and, where there is one that does coroutines right, GCC. Sanitizers do not mix."""
    found = [installed.compiler]
    if not installed.sanitize:
        for name in ("g++-15", "g++-14", "g++-13", "g++"):
            path = shutil.which(name)
            if path and int(run(path, "-dumpversion").split(".")[0]) >= 13:
                found.append([path])
                break
    return found


def check_consumers(folder, kinds, checkpoint):
    programs = sorted(path for kind in kinds for path in folder.glob(f"{kind}_c*") if path.is_file() and os.access(path, os.X_OK))
    assert len(programs) == 2 * len(kinds), programs
    for program in programs:
        assert run(program, checkpoint) == "w 3\n"
        needed = run("readelf", "-d", program)
        assert ("libheadrace.so.0.1" in needed) == program.name.startswith("shared"), needed


def test_a_program_builds_by_pkg_config_alone(installed, checkpoint, tmp_path):
    for kind in installed.kinds:
        program = tmp_path / kind
        flags = installed.flags("headrace", static=kind == "static")
        run(*installed.compiler, "-std=c++20", *installed.sanitize, CONSUMER / "main.cpp", "-o", program, *flags)
        assert run(program, checkpoint) == "w 3\n"


def test_a_meson_project_builds_in_both_standards_against_both_libraries(installed, checkpoint, tmp_path):
    for number, compiler in enumerate(compilers(installed)):
        build = tmp_path / f"build{number}"
        environment = installed.environment(compiler)
        kinds = f"-Dkinds={','.join(installed.kinds)}"
        run(meson_program(), "setup", build, CONSUMER, kinds, env=environment)
        run(meson_program(), "compile", "-C", build, env=environment)
        check_consumers(build, installed.kinds, checkpoint)


def test_a_cmake_project_builds_in_both_standards_against_both_libraries(installed, checkpoint, tmp_path):
    if not shutil.which("cmake"):
        pytest.skip("needs cmake")
    for number, compiler in enumerate(compilers(installed)):
        for kind in installed.kinds:
            build = tmp_path / f"{kind}{number}"
            environment = installed.environment(compiler)
            run("cmake", "-S", CONSUMER, "-B", build, f"-DKIND={kind}", env=environment)
            run("cmake", "--build", build, "--parallel", env=environment)
            check_consumers(build, [kind], checkpoint)


def test_cmake_says_what_is_wrong_with_a_request(installed, tmp_path):
    if not shutil.which("cmake"):
        pytest.skip("needs cmake")
    for number, (asked, answer) in enumerate(
        (("0.2 REQUIRED", "version: 0.1"), ("1 REQUIRED", "version: 0.1"), ("0.1 REQUIRED COMPONENTS cuda", "no cuda"))
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "CMakeLists.txt").write_text(
            f"cmake_minimum_required(VERSION 3.20)\nproject(p LANGUAGES CXX)\nfind_package(headrace {asked})\n"
        )
        done = subprocess.run(
            ["cmake", "-S", folder, "-B", folder / "b"],
            capture_output=True, text=True, timeout=60, env=installed.environment(installed.compiler),
        )  # fmt: skip
        assert done.returncode != 0
        assert answer in done.stderr, done.stderr


def torch_folder(installed):
    pc_file = installed.pkgconfig / "headrace-torch.pc"
    if not pc_file.exists():
        return None
    return next(line for line in pc_file.read_text().splitlines() if line.startswith("torch_dir=")).partition("=")[2]


def test_a_program_with_torch_builds_by_pkg_config_alone(installed, checkpoint, tmp_path):
    if torch_folder(installed) is None:
        pytest.skip("built without torch")
    program = tmp_path / "torch"
    flags = installed.flags("headrace-torch", static="shared" not in installed.kinds)
    run(*installed.compiler, "-std=c++20", *installed.sanitize, CONSUMER / "torch.cpp", "-o", program, *flags)
    assert run(program, checkpoint) == "w 3\n"


def test_a_cmake_project_finds_torch_with_headrace(installed, checkpoint, tmp_path):
    torch = torch_folder(installed)
    if torch is None or not shutil.which("cmake"):
        pytest.skip("built without torch, or no cmake")
    environment = installed.environment(installed.compiler)
    options = [f"-DKIND={installed.kinds[0]}", "-DTORCH=ON", f"-DTorch_DIR={torch}/share/cmake/Torch"]
    run("cmake", "-S", CONSUMER, "-B", tmp_path, *options, env=environment)
    run("cmake", "--build", tmp_path, env=environment)
    assert run(tmp_path / "with_torch", checkpoint) == "w 3\n"


def test_every_public_header_is_installed_and_no_other(installed):
    """That each compiles alone is seen to by the build: tests/headers."""
    left = {path.relative_to(installed.include).as_posix() for path in installed.include.rglob("*") if path.is_file()}
    ours = {path.relative_to(ROOT / "include").as_posix() for path in (ROOT / "include").rglob("*.hpp")}
    if torch_folder(installed) is None:
        ours = {name for name in ours if not name.startswith("headrace/torch/")}
    assert left == ours


def test_the_front_doors_have_no_warnings_with_any_compiler_in_the_next_standard(installed):
    source = "#include <headrace/headrace.hpp>\n#include <headrace/asio.hpp>\n"
    for compiler in compilers(installed):
        command = [*compiler, "-std=c++23", *WARNINGS, f"-I{installed.include}", "-fsyntax-only", "-xc++", "-"]
        run(*command, input=source)


# --- What the shared library shows ------------------------------------------------------------------------------------


def symbols(library, *options):
    """Kind and demangled name of each symbol that is defined in a library."""
    lines = run("nm", "-C", "--defined-only", *options, library).splitlines()
    return {(parts[-2], parts[-1]) for line in lines if len(parts := line.split(" ", 2)) == 3 or len(parts := line.split(None, 1)) == 2}


def shared_libraries(installed):
    if "shared" not in installed.kinds:
        pytest.skip("no shared library was built")
    return sorted(path for path in installed.libraries.glob("libheadrace*.so.*.*.*"))


def test_the_shared_library_has_a_versioned_name(installed):
    for library in shared_libraries(installed):
        said = run("readelf", "-d", library)
        soname = re.search(r"soname: \[(.*)\]", said).group(1)
        assert re.fullmatch(r"libheadrace(-torch)?\.so\.\d+\.\d+", soname)
        assert (installed.libraries / soname).resolve() == library.resolve()
        assert (installed.libraries / soname.partition(".so")[0]).with_suffix(".so").resolve() == library.resolve()
        assert not re.search(r"R(UN)?PATH", said), said


def test_the_shared_library_shows_nothing_but_headrace(installed):
    if installed.sanitize:
        pytest.skip("sanitizers add symbols of their own")
    of_the_linker = {"__bss_start", "_edata", "_end"}
    for library in shared_libraries(installed):
        # Weak ones are the standard library's and Boost's templates, which every user of theirs has.
        strong = {name for kind, name in symbols(library, "-D") if kind in "TDBRu"}
        assert strong
        assert {name for name in strong - of_the_linker if "headrace::" not in name} == set()


def declared_in(headers):
    """Classes and functions that headers declare, by their simple names, without what they define themselves."""
    classes, functions = set(), set()
    for header in headers:
        text = re.sub(r"//.*", "", header.read_text())
        classes |= set(re.findall(r"^(?:class|struct) (?:HEADRACE_API )?(?:\[\[\w+\]\] )?(?:HEADRACE_API )?(\w+)[^;{]*\{", text, re.M))
        # A declaration begins at the start of its line, and its first parenthesis belongs to its name.
        functions |= set(re.findall(r"^(?!#|template|using|class|struct|enum|friend)\S[^(\n]*?\b(\w+)\(", text, re.M))
    return classes - {"detail"}, functions


def test_the_shared_library_shows_what_the_public_headers_declare(installed):
    """A class or function without HEADRACE_API would link in tests, which use the rooms, and for no user."""
    shown = {name for library in shared_libraries(installed) for _, name in symbols(library, "-D")}
    classes, functions = declared_in((installed.include / "headrace").rglob("*.hpp"))
    assert {"runtime", "model", "error"} <= classes
    assert {"open", "parse_size"} <= functions
    hidden = set()
    for archive in installed.build.glob("lib/*/libheadrace_*.a"):
        for kind, name in symbols(archive):
            # headrace::class::member(...) or headrace::function(...)[abi:...]
            match = re.match(r"(?:headrace::(?:detail::|torch::|asio::)?)([a-z_0-9]+)(?:\[abi:\w+\])?(::|\()", name)
            if kind != "T" or name in shown or not match or re.search(r"\.(resume|destroy|cleanup|cold)\b|\(\.|\[clone", name):
                continue
            if match.group(1) in (classes if match.group(2) == "::" else functions):
                hidden.add(name)
    assert hidden == set()
