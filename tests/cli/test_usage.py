"""Wrong command lines, the environment, help."""

import re

import pytest
from model_server import ModelServer


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["strem", "/model"],
        ["stream"],
        ["inspect"],
        ["ls"],
        ["stream", "/model", "/another"],
        ["stream", "/model", "--no-such-option"],
        ["stream", "/model", "--chunk-size"],
        ["stream", "/model", "--chunk-size", "0"],
        ["stream", "/model", "--chunk-size", "1"],
        ["stream", "/model", "--chunk-size", "65535"],
        ["stream", "/model", "--chunk-size", "many"],
        ["stream", "/model", "--chunk-size", "-1"],
        ["stream", "/model", "--chunk-size", "99999999999999999999"],
        ["stream", "/model", "--memory-limit", "0"],
        ["stream", "/model", "--memory-limit", "8MiB"],
        ["stream", "/model", "--memory-limit", "1MiB", "--chunk-size", "2MiB"],
        ["stream", "/model", "--max-concurrency", "0"],
        ["stream", "/model", "--max-concurrency", "-1"],
        ["stream", "/model", "--max-concurrency", "4294967296"],
        ["stream", "/model", "--threads", "x"],
        ["stream", "/model", "--retries", "1.5"],
        ["stream", "/model", "--retries", ""],
        ["stream", "/model", "--repeat", "0"],
        ["stream", "/model", "--stall-timeout", "0"],
        ["stream", "/model", "--stall-timeout", "5 parsecs"],
        ["stream", "/model", "--connect-timeout", "0s"],
        ["stream", "/model", "--deadline", "-1s"],
        ["stream", "/model", "--deadline", "1e400"],
        ["stream", "/model", "--deadline", "nan"],
        ["stream", "/model", "--device", "abacus"],
        ["stream", "/model", "--stats", ""],
        ["stream", "/model", "--trace", "-"],
        ["stream", "/model", "--json"],
        ["ls", "/model", "--digest"],
    ],
)
def test_a_wrong_command_line_is_two_and_one_line(headrace_once, arguments):
    headrace_once(*arguments).usage_message()


def test_what_limits_rule_out_is_told_before_any_request(headrace_once, small):
    with ModelServer(small) as server:
        uri = f"{server.url}/model.safetensors"
        assert "--chunk-size" in headrace_once("stream", uri, "--chunk-size", "0").usage_message()
        assert "--memory-limit" in headrace_once("stream", uri, "--memory-limit", "1M").usage_message()
        assert server.requests == []


def test_the_message_names_what_is_wrong(headrace_once):
    assert "strem" in headrace_once("strem", "/model").usage_message()
    assert "--retries" in headrace_once("stream", "/model", "--retries", "few").usage_message()
    assert "--bogus" in headrace_once("stream", "/model", "--bogus").usage_message()
    assert "HEADRACE_RETRIES" in headrace_once("stream", "/m", environment={"HEADRACE_RETRIES": "few"}).usage_message()


def test_no_secret_of_a_uri_is_repeated(headrace_once):
    secret = "https://user:hunter2@host/model?signature=hunter2"
    for arguments in (["stream", "/model", secret], [secret], ["stream", "ftp://user:hunter2@host/x?y=hunter2"]):
        assert "hunter2" not in headrace_once(*arguments).stderr


def test_control_characters_of_an_argument_do_not_reach_the_terminal(headrace_once):
    message = headrace_once("stream", "/model", "--stats=x", "a\x1b[2Jb\nc").usage_message()
    assert "\x1b" not in message


@pytest.mark.parametrize("arguments", [["--help"], ["stream", "--help"], ["inspect", "-h"], ["ls", "--help"], ["--version"]])
def test_help_and_version_go_to_standard_output(headrace_once, arguments):
    outcome = headrace_once(*arguments)
    assert (outcome.status, outcome.stderr) == (0, "")
    assert "headrace" in outcome.stdout or "URI" in outcome.stdout


def test_every_option_has_its_environment_variable(headrace_once):
    for command in ("stream", "inspect", "ls"):
        text = headrace_once(command, "--help").stdout
        options = set(re.findall(r"^\s+(?:-\w,\s*)?--([\w-]+)", text, re.MULTILINE)) - {"help"}
        assert len(options) > 10
        for option in options:
            assert "HEADRACE_" + option.upper().replace("-", "_") in text


def test_the_contract_has_its_options(headrace_once):
    text = headrace_once("stream", "--help").stdout
    for option in (
        "digest", "stats", "trace", "repeat", "device", "chunk-size", "max-concurrency", "threads", "memory-limit", "include",
        "exclude", "stall-timeout", "deadline", "retries", "ca-file", "quiet", "verbose",
    ):  # fmt: skip
        assert re.search(rf"--{option}\b", text), option


@pytest.mark.parametrize(
    "environment, arguments, lines",
    [
        ({"HEADRACE_DIGEST": "1"}, [], 3),
        ({"HEADRACE_DIGEST": "true"}, [], 3),
        ({"HEADRACE_DIGEST": "0"}, [], 0),
        ({"HEADRACE_DIGEST": ""}, [], 0),
        ({"HEADRACE_DIGEST": "1"}, ["--digest=false"], 0),
        ({"HEADRACE_DIGEST": "1", "HEADRACE_INCLUDE": "norm*"}, [], 1),
        ({"HEADRACE_DIGEST": "1", "HEADRACE_INCLUDE": "norm*"}, ["--include", "layers*"], 2),
        ({"HEADRACE_DIGEST": "1", "HEADRACE_EXCLUDE": "norm*"}, [], 2),
        ({"HEADRACE_STATS": "-"}, [], 1),
        ({"HEADRACE_STATS": "-", "HEADRACE_REPEAT": "2"}, [], 2),
        ({"HEADRACE_STATS": "-", "HEADRACE_REPEAT": "2"}, ["--repeat", "3"], 3),
        ({"HEADRACE_CHUNK_SIZE": "0", "HEADRACE_MEMORY_LIMIT": "0"}, ["--chunk-size", "1M", "--memory-limit", "1M"], 0),
    ],
)
def test_the_command_line_beats_the_environment_beats_the_default(headrace_once, small, environment, arguments, lines):
    outcome = headrace_once("stream", small, *arguments, environment=environment)
    assert (outcome.status, outcome.stderr) == (0, ""), outcome
    assert len(outcome.stdout.splitlines()) == lines


@pytest.mark.parametrize(
    "name, value",
    [
        ("CHUNK_SIZE", "0"), ("MEMORY_LIMIT", "1"), ("RETRIES", "x"), ("DEVICE", "abacus"), ("STALL_TIMEOUT", "0"),
        ("DIGEST", "perhaps"), ("VERBOSE", "perhaps"),
    ],
)  # fmt: skip
def test_a_wrong_variable_is_misuse_too(headrace_once, small, name, value):
    headrace_once("stream", small, environment={f"HEADRACE_{name}": value}).usage_message()


def test_variables_of_another_command_do_not_matter(headrace_once, small):
    outcome = headrace_once("ls", small, environment={"HEADRACE_CHUNK_SIZE": "x", "HEADRACE_JSON": "x"})
    assert (outcome.status, outcome.stderr) == (0, "")


def test_of_an_option_given_twice_the_last_counts(headrace_once, small):
    assert headrace_once("stream", small, "--chunk-size", "0", "--chunk-size", "1M").status == 0


@pytest.mark.parametrize("size", ["65536", "64K", "64KB", "64KiB", "64kib", "0.5MiB"])
def test_sizes_have_units(headrace_once, large, size):
    with ModelServer(large) as server:
        assert headrace_once("stream", f"{server.url}/model.safetensors", "--chunk-size", size).status == 0
        ranges = [re.fullmatch(r"bytes=(\d+)-(\d+)", wanted) for _, _, wanted in server.requests if wanted]
        longest = max(int(found[2]) - int(found[1]) + 1 for found in ranges)
        assert longest == (2**19 if size == "0.5MiB" else 2**16)


@pytest.mark.parametrize("duration", ["20s", "20", "500ms", "0.5", "1.5s", "2m", "1h", "2000000h"])
def test_durations_have_units(headrace_once, small, duration):
    if duration == "2000000h":
        headrace_once("stream", small, "--deadline", duration).usage_message()
    else:
        assert headrace_once("stream", small, "--stall-timeout", duration, "--deadline", duration).status == 0
