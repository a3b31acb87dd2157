"""Options, errors, logging, progress, types, the command line."""

import io
import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path

import headrace
import processes
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"chunk_size": "much"}, ValueError, "much"),
        ({"chunk_size": 1.5}, TypeError, "chunk_size"),
        ({"chunk_size": -1}, ValueError, "chunk_size"),
        ({"max_concurrency": "8"}, TypeError, "max_concurrency"),
        ({"max_concurrency": -8}, ValueError, "max_concurrency"),
        ({"tensors": [1]}, TypeError, "tensors"),
        ({"deadline": "soon"}, TypeError, "deadline"),
        ({"storage_options": {"no_such": 1}}, ValueError, "'no_such'.*endpoint"),
        ({"storage_options": {"endpoint": 5}}, TypeError, "endpoint.*int"),
        ({"storage_options": {"headers": {"a": 5}}}, TypeError, "headers"),
        ({"revision": "v1"}, ValueError, "hf://"),
    ],
)
def test_a_wrong_option_is_told_at_once(small, options, error, message):
    with pytest.raises(error, match=message):
        headrace.ModelStreamer(small, **options)


def test_a_wrong_value_of_an_option_is_told_when_it_is_used(small):
    for options in ({"chunk_size": 5}, {"memory_limit": "64KiB"}, {"max_concurrency": 0}):
        with pytest.raises(ValueError):
            list(headrace.ModelStreamer(small, **options).stream_sync())


def test_sizes_are_numbers_texts_or_variables(small, monkeypatch):
    assert headrace.ModelStreamer(small).chunk_size == 16 << 20
    assert headrace.ModelStreamer(small).memory_limit == 1 << 30
    assert headrace.ModelStreamer(small, chunk_size="2GiB").memory_limit == 2 << 30
    assert headrace.ModelStreamer(small, chunk_size=4096 * 100).chunk_size == 409600
    monkeypatch.setenv("HEADRACE_CHUNK_SIZE", "8MiB")
    monkeypatch.setenv("HEADRACE_MAX_CONCURRENCY", "5")
    assert headrace.ModelStreamer(small).chunk_size == 8 << 20
    assert headrace.ModelStreamer(small).max_concurrency == 5


@pytest.mark.parametrize(
    ("path", "revision", "expected"),
    [
        ("s3://bucket/prefix/", None, "s3://bucket/prefix"),
        ("/", None, "/"),
        (Path("/models/a"), None, "/models/a"),
        ("hf://org/repo", "main", "hf://org/repo@main"),
        ("hf://org/repo/sub/", "refs/pr/1", "hf://org/repo@refs%2Fpr%2F1/sub"),
    ],
)
def test_locations_and_revisions(path, revision, expected):
    assert headrace.ModelStreamer(path, revision=revision).path == expected


def test_a_revision_beside_another_one_is_refused():
    with pytest.raises(ValueError, match="of its own"):
        headrace.ModelStreamer("hf://org/repo@v1", revision="v2")


def test_errors_are_also_what_python_would_raise():
    built_in = {
        "NotFoundError": (FileNotFoundError, ValueError), "AccessDeniedError": PermissionError, "InvalidRequestError": ValueError,
        "ThrottledError": ConnectionError, "TimedOutError": TimeoutError, "TruncatedError": ConnectionError,
        "ProtocolError": ConnectionError, "TLSError": ConnectionError, "ConnectError": ConnectionError,
        "UnavailableError": ConnectionError, "InvalidSafetensorsError": ValueError, "OutOfMemoryError": MemoryError,
        "UnsupportedError": ValueError, "ObjectChangedError": OSError, "InternalError": RuntimeError, "CancelledError": Exception,
    }  # fmt: skip
    for name, bases in built_in.items():
        made = getattr(headrace, name)("what to do", uri="s3://a/b", status=404, byte_range=(0, 10))
        for base in bases if isinstance(bases, tuple) else (bases,):
            assert isinstance(made, base) and isinstance(made, headrace.Error)
        assert str(made) == "what to do"
        copied = pickle.loads(pickle.dumps(made))
        assert (type(copied), str(copied), copied.status, copied.byte_range) == (type(made), "what to do", 404, (0, 10))


def test_errors_say_where(tmp_path):
    with pytest.raises(headrace.NotFoundError) as nothing:
        headrace.ModelStreamer(tmp_path / "nothing").keys()
    assert (nothing.value.kind, str(tmp_path) in str(nothing.value)) == ("not_found", True)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(headrace.InvalidSafetensorsError) as broken:
        headrace.ModelStreamer(tmp_path).keys()
    assert broken.value.uri == str(tmp_path / "model.safetensors")
    with pytest.raises(headrace.UnsupportedError, match="scheme"):
        headrace.ModelStreamer("gopher://host/model").keys()
    with pytest.raises(ConnectionError):
        headrace.ModelStreamer("http://127.0.0.1:1/model", retries=0).keys()


def test_lines_of_the_engine_are_records_of_the_logger(small):
    code = """
import logging, sys, headrace
logging.basicConfig(level=logging.DEBUG, format="%(name)s %(levelname)s %(message)s", stream=sys.stdout)
for _ in headrace.stream(sys.argv[1]): pass
"""
    done = processes.run_python(code, small)
    assert "headrace INFO I/O by" in done.stdout, done.stderr
    silent = processes.run_python(code.replace("logging.DEBUG", "logging.ERROR"), small)
    assert silent.stdout == ""


def test_the_logger_writes_nothing_by_itself(small):
    done = processes.run_python("import sys, headrace\nfor _ in headrace.stream(sys.argv[1]): pass", small)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(monkeypatch, small, progress, stream) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    list(headrace.ModelStreamer(small, progress=progress).stream_sync())
    return stream.getvalue()


def test_progress_is_a_bar_on_terminals_once_a_group_of_processes(monkeypatch, small):
    assert shown(monkeypatch, small, False, Terminal()) == ""
    assert small.name in shown(monkeypatch, small, True, Terminal())
    assert shown(monkeypatch, small, True, io.StringIO()) == ""
    assert "100%" in shown(monkeypatch, small, "always", io.StringIO())
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert shown(monkeypatch, small, "always", Terminal()) == ""


def test_a_stream_tells_how_far_it_is(small):
    stream = headrace.ModelStreamer(small).stream_sync()
    assert stream.progress == (0, 0, 0, 0)
    list(stream)
    assert stream.progress == (4096 + 128 + 80, 4096 + 128 + 80, 3, 3)


def command(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "headrace", *map(str, arguments)],
        capture_output=True, text=True, timeout=60, env=processes.environment(), **options,
    )  # fmt: skip


def test_the_module_is_the_command_line(small, headrace_cli):
    for arguments in (["stream", small, "--digest"], ["inspect", small, "--json"], ["--help"], ["ls", "/nothing"], ["wrong"]):
        program = subprocess.run([headrace_cli, *map(str, arguments)], capture_output=True, text=True, timeout=60)
        found = command(*arguments)
        assert (found.returncode, found.stdout, found.stderr) == (program.returncode, program.stdout, program.stderr)


def test_the_package_says_its_version(headrace_cli):
    assert headrace.__version__ in command("--version").stdout


def test_types_are_right_by_mypy():
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", "--cache-dir", os.devnull],
        capture_output=True, text=True, cwd=ROOT, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_stubs_name_what_the_module_has():
    import ast

    tree = ast.parse((ROOT / "python/headrace/_core.pyi").read_text())
    from headrace import _core

    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            for inside in node.body:
                name = getattr(inside, "name", None) or getattr(getattr(inside, "target", None), "id", None)
                if name and name != "__buffer__":
                    assert hasattr(getattr(_core, node.name), name), f"{node.name}.{name}"
        elif isinstance(node, ast.FunctionDef):
            assert hasattr(_core, node.name), node.name


def test_nothing_but_the_entry_of_the_module_is_seen_by_others():
    (module,) = processes.PACKAGE.glob("headrace/_core.*.so")
    symbols = subprocess.run(["nm", "-D", "--defined-only", module], capture_output=True, text=True, check=True).stdout
    assert [line.split()[-1] for line in symbols.splitlines()] == ["PyInit__core"]


@pytest.mark.parametrize("level", [logging.DEBUG, logging.ERROR])
def test_levels_of_the_logger_are_asked_at_each_opening(small, level, caplog):
    with caplog.at_level(level, logger="headrace"):
        headrace.ModelStreamer(small).keys()
        from headrace import _logs

        assert _logs._collected == (0 if level == logging.DEBUG else 3)
