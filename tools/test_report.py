"""Reads what `meson test` and pytest left in build folders, prints what failed, and ends with `N passed, N failed`.

test_report.py BUILD_FOLDER...

A doctest binary counts by its test cases, a Python test by itself, anything else that Meson ran as one test. A program
that crashed, ran out of time or ended with a failure that its own summary does not show (a leak found at its end, say)
counts as one failed. Exit status 1 if anything failed or nothing ran.
"""

import json
import re
import shlex
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_DOCTEST = re.compile(r"^\[doctest\] test cases:\s*(\d+)\s*\|\s*(\d+) passed\s*\|\s*(\d+) failed", re.MULTILINE)
_SHOWN_LINES = 200
_PASSES = {"OK", "EXPECTEDFAIL"}
_SKIPPED = {"SKIP"}


@dataclass
class Outcome:
    passed: int = 0
    failed: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, other: "Outcome") -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.failures += other.failures


def outcome_of_meson_test(test: dict, folder: str) -> Outcome:
    """The outcome of one line of Meson's testlog.json."""
    if test["result"] in _SKIPPED:
        return Outcome()
    output = _COLOUR.sub("", test.get("stdout") or "")
    summaries = _DOCTEST.findall(output)
    passed = sum(int(summary[1]) for summary in summaries)
    failed = sum(int(summary[2]) for summary in summaries)
    if test["result"] in _PASSES:
        if not summaries:
            passed = 1
    elif failed == 0:
        failed = 1
    if failed == 0:
        return Outcome(passed)
    return Outcome(passed, failed, [describe(test, folder, output)])


def describe(test: dict, folder: str, output: str) -> str:
    errors = _COLOUR.sub("", test.get("stderr") or "")
    lines = (output + errors).rstrip().splitlines()
    hidden = len(lines) - _SHOWN_LINES
    if hidden > 0:
        lines = [f"... {hidden} lines more in {folder}/meson-logs/testlog.txt", *lines[hidden:]]
    command = " ".join(shlex.quote(word) for word in test.get("command", []))
    environment = " ".join(
        f"{name}={shlex.quote(value)}" for name, value in (test.get("env") or {}).items() if name.startswith("HEADRACE_")
    )
    status = f"{test['result']}, status {test.get('returncode')}, after {test.get('duration', 0):.1f} s"
    return "\n".join([f"--- {folder}: {test['name']}: {status}", f"    {environment} {command}".rstrip(), *lines])


def outcome_of_meson(folder: Path) -> Outcome:
    total = Outcome()
    with open(folder / "meson-logs" / "testlog.json") as log:
        for line in log:
            total.add(outcome_of_meson_test(json.loads(line), folder.as_posix()))
    return total


def outcome_of_pytest(folder: Path) -> Outcome:
    """pytest printed its failures itself."""
    total = Outcome()
    for suite in ElementTree.parse(folder / "meson-logs" / "pytest.xml").iter("testsuite"):
        tests, failures, errors, skipped = (int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped"))
        # A test whose teardown breaks after it failed is listed twice in `failures` and `errors`: never below nothing.
        total.add(Outcome(max(0, tests - failures - errors - skipped), failures + errors))
    return total


def report(folders: list[Path]) -> int:
    total = Outcome()
    for folder in folders:
        logs = folder / "meson-logs"
        if not any((logs / name).exists() for name in ("testlog.json", "pytest.xml")):
            total.add(Outcome(0, 1, [f"--- {folder}: no test ran"]))
        if (logs / "testlog.json").exists():
            total.add(outcome_of_meson(folder))
        if (logs / "pytest.xml").exists():
            total.add(outcome_of_pytest(folder))
    for failure in total.failures:
        print(f"\n{failure}")
    if total.failures:
        print()
    if total.passed + total.failed == 0:
        print("no test ran")
    sys.stderr.flush()
    print(f"{total.passed} passed, {total.failed} failed", flush=True)
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: test_report.py BUILD_FOLDER...")
    sys.exit(report([Path(name) for name in sys.argv[1:]]))
