"""The closing line of `./run test`, from logs as Meson and pytest write them."""

import json

import pytest

from test_report import report

SUMMARY = "[doctest] test cases: {total} | {passed} passed | {failed} failed | 0 skipped\n"


@pytest.fixture
def folder(tmp_path):
    """A build folder with the given lines of testlog.json and, if any, the text of pytest.xml."""

    def make(*tests: dict, pytest_xml: str | None = None):
        logs = tmp_path / "build" / "meson-logs"
        logs.mkdir(parents=True)
        if tests:
            (logs / "testlog.json").write_text("".join(json.dumps({"name": "t", **test}) + "\n" for test in tests))
        if pytest_xml:
            (logs / "pytest.xml").write_text(pytest_xml)
        return tmp_path / "build"

    return make


def doctest(passed: int, failed: int) -> str:
    return SUMMARY.format(total=passed + failed, passed=passed, failed=failed)


def last_line(capsys) -> str:
    return capsys.readouterr().out.splitlines()[-1]


def test_sums_test_cases_and_python_tests(folder, capsys):
    xml = '<testsuites><testsuite tests="5" failures="1" errors="0" skipped="1"/></testsuites>'
    build = folder(
        {"result": "OK", "stdout": doctest(12, 0)},
        {"result": "OK", "stdout": "\x1b[0;36m[doctest] \x1b[0mtest cases:  3 |  3 passed | 0 failed | 0 skipped\n"},
        {"result": "OK", "stdout": "a program without a framework\n"},
        {"result": "SKIP", "returncode": 77},
        pytest_xml=xml,
    )
    assert report([build]) == 1
    assert last_line(capsys) == "19 passed, 1 failed"


@pytest.mark.parametrize(
    ("test", "line"),
    [
        ({"result": "FAIL", "returncode": 1, "stdout": doctest(3, 2)}, "3 passed, 2 failed"),
        ({"result": "FAIL", "returncode": -11, "stdout": "half-way"}, "0 passed, 1 failed"),
        ({"result": "TIMEOUT", "returncode": -15}, "0 passed, 1 failed"),
        ({"result": "FAIL", "returncode": 23, "stdout": doctest(4, 0), "stderr": "LeakSanitizer"}, "4 passed, 1 failed"),
    ],
)
def test_counts_what_failed(folder, capsys, test, line):
    assert report([folder(test)]) == 1
    assert last_line(capsys) == line


def test_shows_how_a_test_failed_and_how_to_run_it_again(folder, capsys):
    report(
        [
            folder(
                {
                    "result": "FAIL",
                    "returncode": 1,
                    "command": ["build/tests/io", "a b"],
                    "env": {"HEADRACE_IO": "epoll", "OTHER": "x"},
                    "stdout": "expected 1\n" + doctest(1, 1),
                    "stderr": "on stderr",
                }
            )
        ]
    )
    output = capsys.readouterr().out
    assert "HEADRACE_IO=epoll build/tests/io 'a b'" in output
    assert "expected 1" in output and "on stderr" in output and "OTHER" not in output


def test_fails_where_nothing_ran(folder, capsys):
    assert report([folder()]) == 1
    assert last_line(capsys) == "0 passed, 1 failed"


def test_adds_folders_up(folder, tmp_path, capsys):
    build = folder({"result": "OK", "stdout": doctest(2, 0)})
    assert report([build, build]) == 0
    assert last_line(capsys) == "4 passed, 0 failed"
