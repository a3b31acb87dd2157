"""The progress bar, summaries, `-q` and `-v`."""

import re

import pytest
from headrace_program import Terminal, collect
from model_server import ModelServer

SUMMARY = r"6 tensors, 24\.0 MB in \d+\.\d\d s \([\d.]+ [kMGT]?B/s\)"
BAR = re.compile(r"\r *(\d+)% \[=*>? *\] +([\d.]+ \w+) / ([\d.]+ \w+) +([\d.]+ \w+)/s +([\d:-]+) left\x1b\[K")


class HeldStream:
    """A stream on a terminal that has come half-way and goes on when it is let."""

    def __init__(self, program, folder, terminal, *arguments, **environment):
        self.server = ModelServer(folder)
        self._program, self._terminal, self._arguments, self._environment = program, terminal, arguments, environment

    def __enter__(self):
        self.server.__enter__()
        self.server.hold("/model.safetensors", after=1_000_000, start=1_000_000)
        arguments = ("stream", f"{self.server.url}/model.safetensors", "--chunk-size", "4M", *self._arguments)
        self.child = self._program.start(*arguments, stderr=self._terminal.theirs, environment=self._environment)
        assert self.server.held.wait(60)
        return self

    def __exit__(self, *_):
        if self.child.poll() is None:
            self.child.kill()
            self.child.communicate()
        self.server.__exit__()


def test_a_bar_is_drawn_erased_and_followed_by_a_summary(headrace, large):
    with Terminal() as terminal, HeldStream(headrace, large, terminal, "--digest") as held:
        terminal.wait_for(BAR.search)
        held.server.release()
        outcome = collect(held.child)
        assert (outcome.status, outcome.stdout.count("\n")) == (0, 6)
        terminal.wait_for(lambda text: text.endswith("\n"))
        screen = terminal.screen()
        assert re.fullmatch(SUMMARY, screen[0]) and screen[1:] == [""], screen
        done = [int(found[1]) for found in BAR.finditer(terminal.text)]
        assert done == sorted(done) and done[0] < 100
        assert BAR.search(terminal.text)[3] == "24.0 MB"


def test_a_stall_shows_on_the_bar(headrace_once, large):
    with Terminal() as terminal, HeldStream(headrace_once, large, terminal):
        terminal.wait_for(lambda text: re.search(r" 0 B/s +-:-- left", text))


def test_the_bar_is_erased_before_an_error_line(headrace, large):
    with Terminal() as terminal, HeldStream(headrace, large, terminal, "--retries", "0") as held:
        terminal.wait_for(BAR.search)
        held.server.refuse = 403
        held.server.release(broken=True)
        assert collect(held.child).status == 1
        terminal.wait_for(lambda text: text.endswith("\n"))
        text = terminal.text
        assert text.rindex("\r\x1b[K") < text.rindex("headrace: ")
        # The line may be longer than the terminal is wide, so the screen is not asked.
        assert re.search(r"\r\x1b\[Kheadrace: \w+: [^\r\n]+\r\n$", text)


@pytest.mark.parametrize("columns", [2, 10, 20, 30, 45, 60, 79, 200])
def test_the_bar_fits_any_terminal(headrace_once, large, columns):
    with Terminal(columns) as terminal, HeldStream(headrace_once, large, terminal, "--repeat", "12"):
        # Two columns have room for nothing but the start of "opening".
        terminal.wait_for(lambda text: "%" in text if columns > 2 else "1" in text)
        drawn = [line for line in terminal.text.replace("\x1b[K", "\r").split("\r") if line]
        assert max(len(line) for line in drawn) < columns


def test_passes_are_numbered(headrace_once, large):
    with Terminal() as terminal, HeldStream(headrace_once, large, terminal, "--repeat", "2") as held:
        terminal.wait_for(lambda text: "\r1/2 " in text)
        held.server.release()
        assert collect(held.child).status == 0
        terminal.wait_for(lambda text: text.endswith("\n") and text.count("\n") == 2)
        screen = terminal.screen()
        assert re.fullmatch("1/2 " + SUMMARY, screen[0]) and re.fullmatch("2/2 " + SUMMARY, screen[1])


def test_a_short_stream_has_a_summary_too(headrace_once, small):
    with Terminal() as terminal:
        assert collect(headrace_once.start("stream", small, stderr=terminal.theirs)).status == 0
        terminal.wait_for(lambda text: text.endswith("\n"))
        assert terminal.screen()[0].startswith("3 tensors, 4.24 kB in ")


def test_a_dumb_terminal_gets_no_escape_sequences(headrace_once, large):
    with Terminal() as terminal, HeldStream(headrace_once, large, terminal, TERM="dumb") as held:
        terminal.wait_for(lambda text: "% [" in text)
        held.server.release()
        assert collect(held.child).status == 0
        terminal.wait_for(lambda text: text.endswith("\n"))
        assert "\x1b" not in terminal.text
        assert re.fullmatch(SUMMARY, terminal.screen()[0])


def test_quiet_says_nothing(headrace, large, tmp_path):
    with Terminal() as terminal:
        child = headrace.start("stream", large, "-q", "--stats", tmp_path / "stats", stderr=terminal.theirs)
        outcome = collect(child)
        assert (outcome.status, outcome.stdout) == (0, "")
        assert terminal.text == ""


def test_quiet_tells_errors(headrace_once, tmp_path):
    assert headrace_once("stream", tmp_path, "-q").error_kind() == "not_found"


def test_quiet_by_the_environment(headrace_once, small):
    with Terminal() as terminal:
        child = headrace_once.start("stream", small, stderr=terminal.theirs, environment={"HEADRACE_QUIET": "1"})
        assert collect(child).status == 0
        assert terminal.text == ""


def test_without_a_terminal_there_is_no_bar_and_no_summary(headrace_once, large):
    outcome = headrace_once("stream", large)
    assert (outcome.status, outcome.stdout, outcome.stderr) == (0, "", "")


def test_verbose_gives_log_lines_and_a_summary(headrace, large):
    with ModelServer(large) as server:
        outcome = headrace("stream", f"{server.url}/model.safetensors", "-v")
    assert (outcome.status, outcome.stdout) == (0, "")
    *log, summary = outcome.stderr.splitlines()
    assert re.fullmatch(SUMMARY, summary)
    assert all(re.match(r"\[(info|warning|error)\] \S", line) for line in log), log


def test_verbose_tells_once_which_backend_was_chosen(headrace_once, small):
    outcome = headrace_once("stream", small, "-v", "--repeat", "2")
    assert len(re.findall(r"^\[info\] I/O by ", outcome.stderr, re.MULTILINE)) == 1


def test_very_verbose_gives_more(headrace_once, small):
    usual, more = (headrace_once("stream", small, option).stderr for option in ("-v", "-vv"))
    assert len(more.splitlines()) >= len(usual.splitlines())


def test_log_lines_do_not_garble_the_bar(headrace_once, large):
    with Terminal(150) as terminal, HeldStream(headrace_once, large, terminal, "-vv") as held:
        terminal.wait_for(lambda text: "% [" in text)
        held.server.release()
        assert collect(held.child).status == 0
        terminal.wait_for(lambda text: re.search(SUMMARY + r"\r\n$", text))
        *log, summary, end = [line for line in re.split(r"\r?\n", re.sub(r"\r[^\n\r]*\x1b\[K", "", terminal.text))]
        assert re.fullmatch(SUMMARY, summary) and end == ""
        assert all(line.startswith("[") for line in log), log


def test_the_end_of_the_terminal_is_not_the_end_of_the_stream(headrace_once, large, tmp_path):
    terminal = Terminal()
    with HeldStream(headrace_once, large, terminal, "--stats", tmp_path / "stats.json") as held:
        terminal.wait_for(BAR.search)
        terminal.__exit__()
        held.server.release()
        assert collect(held.child).status == 0
    assert (tmp_path / "stats.json").exists()
