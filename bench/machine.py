"""What the figures were measured on, in words that name no host and no path."""

import json
import os
import pathlib
import re
import subprocess

import nginx


def _read(path: str) -> str:
    try:
        return pathlib.Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def _field(text: str, name: str) -> str:
    found = re.search(rf"^{re.escape(name)}\s*[:=]\s*\"?([^\"\n]*)", text, re.MULTILINE)
    return found.group(1).strip() if found else ""


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _meson(build: pathlib.Path, name: str) -> object:
    text = _read(str(build / "meson-info" / f"intro-{name}.json"))
    return json.loads(text) if text else None


def build_options(build: pathlib.Path) -> dict[str, str]:
    """Meson's options of a build folder by name; empty where it is none."""
    return {option["name"]: option["value"] for option in _meson(build, "buildoptions") or []}


def describe_build(build: pathlib.Path) -> str:
    parts = []
    compiler = ((_meson(build, "compilers") or {}).get("host") or {}).get("cpp")
    if compiler:
        parts.append(f"{compiler['id']} {compiler['version']}")
    options = build_options(build)
    if "buildtype" in options:
        parts.append(f"build type {options['buildtype']}")
    versions = {entry["name"]: entry["version"] for entry in _meson(build, "dependencies") or []}
    for name, package in (("OpenSSL", "openssl"), ("liburing", "liburing")):
        version = versions.get(package) or _output("pkg-config", "--modversion", package)
        parts.append(f"{name} {version or 'of unknown version'}")
    parts.append(f"nginx {nginx.version()}")
    return ", ".join(parts)


def describe_machine() -> str:
    information = _read("/proc/cpuinfo")
    model = _field(information, "model name") or os.uname().machine
    cores = len(os.sched_getaffinity(0))
    virtual = (
        " (virtual machine)"
        if re.search(r"^flags.*\bhypervisor\b", information, re.MULTILINE)
        else ""
    )
    memory = int(_field(_read("/proc/meminfo"), "MemTotal").split()[0] or 0) / (1 << 20)
    system = _field(_read("/etc/os-release"), "PRETTY_NAME") or "Linux"
    # The numbers alone: what a provider appends to them may name a machine.
    kernel = re.match(r"[0-9.]+", os.uname().release)
    pages = re.search(r"\[(\w+)\]", _read("/sys/kernel/mm/transparent_hugepage/enabled"))
    return (
        f"{model}, {cores} core{'s' if cores != 1 else ''}{virtual}, {memory:.0f} GiB; {system}, "
        f"Linux {kernel.group() if kernel else 'of unknown version'}, "
        f"transparent huge pages: {pages.group(1) if pages else 'none'}"
    )


def describe_commit(repository: pathlib.Path) -> str:
    commit = _output("git", "-C", str(repository), "rev-parse", "--short", "HEAD")
    if not commit:
        return "no commit"
    changed = _output(
        "git", "-C", str(repository), "status", "--porcelain", "--", ":!bench/RESULTS.md"
    )
    return f"commit {commit}" + (" with local changes" if changed else "")


def file_system(path: pathlib.Path) -> str:
    """The type of the file system that holds a path, such as ext4 or tmpfs."""
    best, kind = "", "unknown"
    for line in _read("/proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        mount = before.split()[4].encode().decode("unicode_escape")
        inside = str(path) == mount or str(path).startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, after.split()[0]
    return kind


def stolen_share(before: list[int], after: list[int]) -> float:
    """The share of processor time between two `processor_times()` that the host kept for others."""
    total = sum(after[:8]) - sum(before[:8])
    return (after[7] - before[7]) / total if total > 0 else 0.0


def processor_times() -> list[int]:
    return [int(value) for value in _read("/proc/stat").split("\n", 1)[0].split()[1:]]
