"""Modules: built without memory for their weights, and filled."""

import asyncio
import threading

import headrace
import pytest
import safetensors.torch
import torch
from model_server import ModelServer
from torch import nn


class Net(nn.Module):
    """Parameters, a frozen one, persistent and other buffers."""

    def __init__(self, width: int = 4):
        super().__init__()
        self.first = nn.Linear(width, 3)
        self.norm = nn.BatchNorm1d(3)
        self.scale = nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("table", torch.arange(3.0))
        self.register_buffer("computed", torch.full((2,), 7.0), persistent=False)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight


class TiesItself(nn.Module):
    """As models of transformers do it."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.ties = 0

    def tie_weights(self):
        self.ties += 1
        self.head.weight = self.embedding.weight


def load(folder, module, streamer_options=None, **options):
    return asyncio.run(headrace.ModelStreamer(folder, **(streamer_options or {})).load_into(module, **options))


@pytest.fixture
def saved(tmp_path):
    """Saves a state dict and gives the folder."""

    def save(state, metadata={"format": "pt"}):
        safetensors.torch.save_file({name: tensor.clone() for name, tensor in state.items()}, tmp_path / "model.safetensors", metadata)
        return tmp_path

    return save


def same(module, state):
    found = module.state_dict()
    return found.keys() == state.keys() and all(torch.equal(found[name], state[name]) for name in state)


def test_a_module_is_filled_as_load_state_dict_would(saved):
    state = Net().state_dict()
    module = Net()
    result = load(saved(state), module)
    assert result == headrace.LoadResult([], [])
    assert same(module, state)
    assert not module.scale.requires_grad and module.first.weight.requires_grad
    assert torch.equal(module.computed, torch.full((2,), 7.0))


def test_an_empty_module_is_filled_on_the_device_that_is_named(saved):
    state = Net().state_dict()
    with headrace.empty_weights():
        module = Net()
    assert "first.weight" in headrace.missing_parameters(module)
    assert torch.equal(module.table, torch.arange(3.0))
    folder = saved(state)
    with pytest.raises(ValueError, match="'first.*meta"):
        load(folder, module)
    load(folder, module, device="cpu")
    assert same(module, state)
    assert headrace.missing_parameters(module) == []
    assert module.first.weight.requires_grad and not module.scale.requires_grad


def test_dtypes_are_those_of_the_checkpoint_or_the_one_that_is_named(saved):
    state = {name: tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor for name, tensor in Net().state_dict().items()}
    folder = saved(state)
    module = Net()
    load(folder, module)
    assert module.first.weight.dtype == torch.bfloat16
    load(folder, module, dtype=torch.float64)
    assert module.first.weight.dtype == torch.float64
    assert module.norm.num_batches_tracked.dtype == torch.int64


def test_a_shape_that_differs_is_told_before_anything_changes(saved):
    module = Net(width=5)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with pytest.raises(ValueError, match=r"'first.weight': checkpoint shape \(3, 4\) != module shape \(3, 5\)"):
        load(saved(Net().state_dict()), module)
    assert same(module, before)


def test_strict_counts_and_names_what_is_missing_and_unexpected(saved):
    state = Net().state_dict()
    del state["scale"]
    state |= {f"extra.{number:02}": torch.zeros(1) for number in range(12)}
    folder = saved(state)
    module = Net()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with pytest.raises(KeyError, match=r"1 missing: 'scale'; 12 unexpected: 'extra.00', .*'extra.09' and 2 more"):
        load(folder, module)
    assert same(module, before)
    result = load(folder, module, strict=False)
    assert result.missing_keys == ["scale"]
    assert sorted(result.unexpected_keys) == [f"extra.{number:02}" for number in range(12)]


def test_what_is_not_wanted_is_not_fetched(tmp_path, saved):
    state = Net().state_dict() | {"huge": torch.zeros(3_000_000)}
    folder = saved(state)
    with ModelServer(folder) as server:
        streamer = headrace.ModelStreamer(server.url)
        asyncio.run(streamer.load_into(Net(), key_mapping={"huge": None}))
        assert streamer.statistics.bytes < 1_000_000


def test_keys_are_renamed_and_skipped_by_functions_and_by_mappings(saved):
    state = Net().state_dict()
    folder = saved({f"model.{name}": tensor for name, tensor in state.items()} | {"other": torch.zeros(1)})
    module = Net()
    load(folder, module, key_mapping=lambda name: name.removeprefix("model.") if name != "other" else None)
    assert same(module, state)
    module = Net()
    load(folder, module, key_mapping={f"model.{name}": name for name in state} | {"other": None})
    assert same(module, state)
    with pytest.raises(ValueError, match="both meant for 'scale'"):
        load(folder, Net(), key_mapping=lambda name: "scale")


def test_tied_parameters_stay_tied(saved):
    state = Tied().state_dict()
    for names in (["embedding.weight"], ["head.weight"]):
        module = Tied()
        assert load(saved({name: state[name] for name in names}), module) == ([], [])
        assert module.head.weight is module.embedding.weight
        assert torch.equal(module.head.weight, state["head.weight"])


def test_what_cannot_require_gradients_does_not(saved):
    module = nn.Linear(2, 2, bias=False)
    load(saved({"weight": torch.ones(2, 2, dtype=torch.int8)}), module)
    assert (module.weight.dtype, module.weight.requires_grad) == (torch.int8, False)


def test_tie_weights_is_called_once_at_the_end(saved):
    state = TiesItself().state_dict()
    with headrace.empty_weights():
        module = TiesItself()
    result = load(saved({"embedding.weight": state["embedding.weight"]}), module, device="cpu")
    assert (module.ties, result) == (1, ([], []))
    assert module.head.weight is module.embedding.weight
    with pytest.raises(KeyError, match="1 missing: 'embedding.weight'"):
        load(saved({"head.weight": state["head.weight"]}), TiesItself())


def test_state_dict_loads_into_a_module(saved):
    state = Net().state_dict()
    module = Net()
    found = asyncio.run(headrace.ModelStreamer(saved(state)).state_dict())
    module.load_state_dict(found)
    assert same(module, state)


def test_a_checkpoint_for_another_framework_is_refused_for_torch_alone(saved):
    folder = saved({"a": torch.zeros(2)}, {"format": "tf"})
    with pytest.raises(ValueError, match="'tf'"):
        list(headrace.ModelStreamer(folder).stream_sync())
    with pytest.raises(ValueError, match="'tf'"):
        asyncio.run(headrace.ModelStreamer(folder).state_dict())
    assert [tensor.name for tensor in headrace.stream(folder)] == ["a"]


def test_empty_weights_concerns_its_own_thread_alone():
    inside, outside, done = threading.Event(), threading.Event(), []

    def build_empty():
        with headrace.empty_weights():
            inside.set()
            outside.wait(20)
            done.append(Net())

    thread = threading.Thread(target=build_empty)
    thread.start()
    assert inside.wait(20)
    real = Net()
    outside.set()
    thread.join(20)
    assert not real.first.weight.is_meta
    assert done[0].first.weight.is_meta
    assert not Net().first.weight.is_meta


def test_empty_weights_keeps_ties_and_ends_with_an_error_too():
    with headrace.empty_weights():
        with headrace.empty_weights():
            module = Tied()
        assert module.head.weight is module.embedding.weight
        assert Net().first.weight.is_meta
    with pytest.raises(ZeroDivisionError), headrace.empty_weights():
        raise ZeroDivisionError
    assert not Net().first.weight.is_meta


def test_threads_may_build_at_once_inside_and_outside():
    wrong = []

    def build(empty: bool):
        for _ in range(200):
            if empty:
                with headrace.empty_weights():
                    made = nn.Linear(2, 2)
            else:
                made = nn.Linear(2, 2)
            if made.weight.is_meta != empty:
                wrong.append(empty)

    threads = [threading.Thread(target=build, args=(number % 2 == 0,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
