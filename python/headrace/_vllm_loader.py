"""The model loader behind vLLM's load format `headrace`. Imported by `headrace.vllm.register`
alone: it needs vLLM."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from vllm.config import ModelConfig, VllmConfig
from vllm.config.load import LoadConfig
from vllm.model_executor import model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from headrace import ModelStreamer
from headrace.vllm import LOAD_FORMAT, OPTIONS, refuse_secrets

# The models whose weights `uri` names, by `uri`. An engine of vLLM loads others with the same
# settings: a draft model for speculative decoding, weights to put in the place of the first ones.
_owners: dict[str, set[str]] = {}


def is_registered(load_format: str) -> bool:
    # There is no other way to ask. Where the table is called something else one day, a second
    # registration only warns.
    return load_format in getattr(model_loader, "_LOAD_FORMAT_TO_MODEL_LOADER", {})


class HeadraceModelLoader(DefaultModelLoader):
    """vLLM's default loader, with the primary weights taken from a stream: placement, sharding and
    quantisation are vLLM's.

    `model_loader_extra_config` may hold `uri`, where the weights are (without it: the model that
    vLLM was given, a folder or a repository of the Hub), `device`, `headrace.vllm.OPTIONS`, and
    what the default loader takes.
    """

    counter_before_loading_weights: float

    def __init__(self, load_config: LoadConfig):
        extra = load_config.model_loader_extra_config
        if not isinstance(extra, dict):
            raise ValueError(
                'model_loader_extra_config: an object such as {"uri": "s3://bucket/model"} '
                f"is needed, not a {type(extra).__name__}"
            )
        rest = dict(extra)
        uri = rest.pop("uri", None)
        if uri is not None and (not isinstance(uri, str) or not uri):
            raise ValueError(
                "model_loader_extra_config: uri must be a text such as s3://bucket/model"
            )
        self._uri: str | None = uri
        self._device: str = rest.pop("device", None) or "cpu"
        given = {name: rest.pop(name, None) for name in OPTIONS}
        self._options: dict[str, Any] = {
            name: value for name, value in given.items() if value is not None
        }
        refuse_secrets(self._options)
        try:
            # What is not primary is loaded the default way.
            super().__init__(
                dataclasses.replace(load_config, load_format="auto", model_loader_extra_config=rest)
            )
        except ValueError as error:
            known = ", ".join(("uri", "device", *OPTIONS))
            raise ValueError(
                f"load format {LOAD_FORMAT}: {error}. "
                f"Beside what the default loader takes, it knows {known}"
            ) from error

    def download_model(self, model_config: ModelConfig) -> None:
        """Nothing is to be downloaded ahead of the stream."""

    def load_model(
        self, vllm_config: VllmConfig, model_config: ModelConfig, prefix: str = ""
    ) -> nn.Module:
        if self._uri is not None and not _is_other_draft(vllm_config, model_config):
            _owners.setdefault(self._uri, set()).add(model_config.model)
        model: nn.Module = super().load_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
        return model

    def get_all_weights(
        self, model_config: ModelConfig, model: nn.Module
    ) -> Iterator[tuple[str, torch.Tensor]]:
        self._refuse_other_layouts(model)
        # The default loader begins this clock with the primary weights.
        if self.counter_before_loading_weights == 0.0:
            self.counter_before_loading_weights = time.perf_counter()
        yield from self._stream(self._source(model_config), model)
        for source in getattr(model, "secondary_weights", ()):
            yield from self._get_weights_iterator(source)

    def _source(self, model_config: ModelConfig) -> str:
        """Where the weights of a model are."""
        if self._uri is not None and model_config.model in _owners.get(
            self._uri, {model_config.model}
        ):
            return self._uri
        name = getattr(model_config, "model_weights", "") or model_config.model
        if "://" in name or os.path.exists(name):
            return name
        revision = f"@{model_config.revision}" if model_config.revision else ""
        return f"hf://{name}{revision}"

    def _stream(self, uri: str, model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        options = dict(self._options)
        if uri != self._uri:
            # These say how `uri` is reached, and no other place.
            for name in ("revision", "storage_options"):
                options.pop(name, None)
        streamer = ModelStreamer(uri, **options, progress=bool(self.load_config.use_tqdm_on_load))
        wanted = self._wanted(streamer, model)
        if wanted is None:
            yield from streamer.stream_sync(device=self._device)
        elif wanted:
            yield from streamer.stream_sync(device=self._device, tensors=wanted)

    def _wanted(self, streamer: ModelStreamer, model: nn.Module) -> list[str] | None:
        """What this process needs, None for everything: with expert parallelism its own experts are
        a small part."""
        is_unused = getattr(model, "is_unused_checkpoint_weight", None)
        if self.local_expert_ids is None and is_unused is None:
            return None
        from vllm.model_executor.model_loader.ep_weight_filter import should_skip_weight

        names = list(streamer.keys())
        wanted = [
            name
            for name in names
            if not should_skip_weight(name, self.local_expert_ids)
            and not (is_unused is not None and is_unused(name))
        ]
        return None if len(wanted) == len(names) else wanted

    def _refuse_other_layouts(self, model: nn.Module) -> None:
        """Weights that `ModelStreamer` would read in another way than the default loader must not
        load silently."""
        instead = "Download the model and use --load-format auto"
        patterns = getattr(model, "allow_patterns_overrides", None)
        if patterns is not None:
            raise ValueError(
                f"load format {LOAD_FORMAT} reads the safetensors files at the top of a model, "
                f"and {type(model).__name__} wants {', '.join(patterns)}. {instead}"
            )
        if self.load_config.safetensors_load_strategy == "torchao":
            raise ValueError(
                f"load format {LOAD_FORMAT} does not put together the tensors of torchao "
                f"checkpoints. {instead}"
            )


def _is_other_draft(vllm_config: VllmConfig, model_config: ModelConfig) -> bool:
    """Whether this is a draft model that has weights of its own elsewhere, loaded with the settings
    of its target."""
    speculative = vllm_config.speculative_config
    if (
        speculative is None
        or speculative.draft_load_config is not None
        or speculative.target_model_config is None
    ):
        return False
    draft = speculative.draft_model_config
    return (
        draft is not None
        and draft.model == model_config.model != speculative.target_model_config.model
    )
