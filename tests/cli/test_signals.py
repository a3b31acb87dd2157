"""Ctrl-C and its kin. That it ends within a second is the contract's: the one time that is measured here."""

import signal

import pytest
from headrace_program import PATIENCE, Terminal, collect, interrupt
from model_server import ModelServer

STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143}


@pytest.mark.parametrize("number", STATUS)
def test_a_stalled_stream_ends_within_a_second(headrace, large, number):
    with ModelServer(large) as server:
        server.hold("/model.safetensors", after=1000, start=1_000_000)
        child = headrace.start("stream", f"{server.url}/model.safetensors", "--digest", "--stats", "-")
        assert server.held.wait(60)
        outcome, took = interrupt(child, number)
    assert (outcome.status, outcome.stdout) == (STATUS[number], "")
    assert outcome.stderr.startswith("headrace: cancelled: ") and outcome.stderr.count("\n") == 1
    assert took < PATIENCE


@pytest.mark.parametrize("command", ["stream", "inspect", "ls"])
def test_a_stalled_opening_ends_within_a_second(headrace, small, command):
    with ModelServer(small) as server:
        server.hold("/model.safetensors", after=4)
        child = headrace.start(command, f"{server.url}/model.safetensors")
        assert server.held.wait(60)
        outcome, took = interrupt(child)
    assert (outcome.status, outcome.stdout) == (130, "")
    assert took < PATIENCE


def test_a_busy_stream_ends_within_a_second(headrace, large):
    child = headrace.start("stream", large, "--digest", "--repeat", "1000000", "-v")
    # A summary says that it is at work.
    assert child.stderr.readline()
    while b"tensors" not in child.stderr.readline():
        assert child.poll() is None
    outcome, took = interrupt(child)
    assert (outcome.status, outcome.stdout) == (130, "")
    assert took < PATIENCE


def test_an_ignored_signal_of_a_background_job_still_counts(headrace_once, small):
    with ModelServer(small) as server:
        server.hold("/model.safetensors", after=4)
        child = headrace_once.start(
            "stream", f"{server.url}/model.safetensors", preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)
        )
        assert server.held.wait(60)
        outcome, _ = interrupt(child)
    assert outcome.status == 130


def test_many_signals_end_it_as_well(headrace, large):
    with ModelServer(large) as server:
        server.hold("/model.safetensors", after=1000, start=1_000_000)
        child = headrace.start("stream", f"{server.url}/model.safetensors")
        assert server.held.wait(60)
        for _ in range(5):
            child.send_signal(signal.SIGINT)
        assert collect(child).status == 130


def test_the_bar_is_erased_before_the_end(headrace, large):
    with ModelServer(large) as server, Terminal() as terminal:
        server.hold("/model.safetensors", after=1000, start=1_000_000)
        child = headrace.start("stream", f"{server.url}/model.safetensors", stderr=terminal.theirs)
        assert server.held.wait(60)
        terminal.wait_for(lambda text: "%" in text)
        child.send_signal(signal.SIGINT)
        assert collect(child).status == 130
        terminal.wait_for(lambda text: text.endswith("\n"))
        assert terminal.screen() == ["headrace: cancelled: interrupted", ""]
