"""Checkpoints of some hundred kilobytes whose answers depend on every layer, for vLLM on a
processor."""

from pathlib import Path

import torch
import transformers

# vLLM's attention on processors knows heads of 32 and more.
_SIZES = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 128,
    # The usual 0.02 would leave the last token's embedding to decide.
    "initializer_range": 0.25,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "decoder_sparse_step": 1,
}

CONFIGURATIONS = {
    "qwen2": lambda: transformers.Qwen2Config(**_SIZES, tie_word_embeddings=True),
    "llama": lambda: transformers.LlamaConfig(**_SIZES, tie_word_embeddings=False),
    "qwen3-moe": lambda: transformers.Qwen3MoeConfig(
        **_SIZES, **_EXPERTS, tie_word_embeddings=False
    ),
}


def make_model(kind: str, folder: Path, *, seed: int = 0, shard_size: str = "10GB") -> Path:
    """Writes a model of `CONFIGURATIONS` with random weights and a tokenizer whose words are `w0`
    to `w255`."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGURATIONS[kind]())
    model.save_pretrained(folder, max_shard_size=shard_size)
    _make_tokenizer().save_pretrained(folder)
    return folder


def _make_tokenizer() -> transformers.PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(
        models.WordLevel({f"w{number}": number for number in range(256)}, unk_token="w0")
    )
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="w0", pad_token="w0", bos_token="w1", eos_token="w2"
    )
