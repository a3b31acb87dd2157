"""Tiny models of many architectures: how each is made, saved, and loaded again.

Weights are seeded and random, also where a fresh model would have zeros or ones, so that a tensor in the wrong place differs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from safetensors.torch import load_file, save_file

SMALL = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=64,
    max_position_embeddings=64,
)  # fmt: skip
VISION = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=8,
)  # fmt: skip
SPEECH = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, conv_dim=(16, 16), conv_kernel=(3, 3),
    conv_stride=(2, 2), num_feat_extract_layers=2, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, vocab_size=32,
)  # fmt: skip


class Sample(NamedTuple):
    """One architecture, or one way of saving it."""

    name: str
    config: Callable[[], Any]
    saved_as: str = "AutoModelForCausalLM"
    loaded_as: str | None = None
    """None: as it was saved."""
    dtype: Any = None
    """What it is saved in."""
    shard_size: str | None = None
    edit: Callable[[Path], None] | None = None
    """Changes the saved files."""
    options: dict[str, Any] = {}
    """For `from_pretrained` and `load_hf_model`."""
    since: int = 4
    """The first version of transformers that loads it."""

    def loader(self) -> Any:
        return getattr(transformers, self.loaded_as or self.saved_as)

    def save(self, folder: Path) -> None:
        torch.manual_seed(sum(self.name.encode()))
        kind = getattr(transformers, self.saved_as)
        config = self.config()
        model = kind.from_config(config) if self.saved_as.startswith("Auto") else kind(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_()
        if self.dtype is not None:
            model.to(self.dtype)
        model.save_pretrained(folder, **({} if self.shard_size is None else {"max_shard_size": self.shard_size}))
        if self.edit is not None:
            self.edit(folder)


def _of(name: str, **settings: Any) -> Callable[[], Any]:
    """Makes a config. Settings whose names the config has, among the small ones, are set."""
    common = {} if settings.pop("bare", False) else SMALL

    def make() -> Any:
        return getattr(transformers, name)(**{**common, **settings})

    return make


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    """Saves other tensors in the one file of a model."""
    file = folder / "model.safetensors"
    tensors = change(load_file(file))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file, metadata={"format": "pt"})


def rename(*pairs: tuple[str, str]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        def change(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            renamed = {}
            for name, tensor in tensors.items():
                for old, new in pairs:
                    name = name.replace(old, new)
                renamed[name] = tensor
            assert set(renamed) != set(tensors)
            return renamed

        rewrite(folder, change)

    return edit


def change_config(folder: Path, **settings: Any) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config.update(settings)
    file.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


def _settings_in_config(folder: Path) -> None:
    """As models of old have it: no generation config, its settings among those of the model."""
    (folder / "generation_config.json").unlink()
    change_config(folder, num_beams=3, max_length=17, no_repeat_ngram_size=2)


def _no_dtype(folder: Path) -> None:
    change_config(folder, dtype=None, torch_dtype=None)


def _computed_frequencies_in_file(folder: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}

    rewrite(folder, change)


def _fp8(folder: Path) -> None:
    """Weights in blocks of fp8 with their scales, as DeepSeek-V3 and Qwen3-FP8 have them."""
    block = 16

    def change(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        made = {}
        for name, tensor in tensors.items():
            if not name.endswith("proj.weight"):
                made[name] = tensor
                continue
            rows, columns = (-(-extent // block) for extent in tensor.shape)
            made[name] = tensor.to(torch.float8_e4m3fn)
            made[f"{name}_scale_inv"] = torch.rand(rows, columns) + 0.5
        assert len(made) > len(tensors)
        return made

    rewrite(folder, change)
    change_config(
        folder,
        quantization_config={
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "weight_block_size": [block, block],
        },
    )


def _both_precisions(folder: Path) -> None:
    """A second file with the same names in another precision, which must not be mixed in."""
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {name: (tensor * 2).half() for name, tensor in tensors.items()},
        folder / "model.fp16.safetensors",
        metadata={"format": "pt"},
    )


def _single_beside_index(folder: Path) -> None:
    """An index, and a whole file beside it: that one goes first."""
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {name: tensor + 1 for name, tensor in tensors.items()}, folder / "other.safetensors", metadata={"format": "pt"}
    )
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, "other.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _named_weights(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {name: tensor + 1 for name, tensor in tensors.items()},
        folder / "consolidated.safetensors",
        metadata={"format": "pt"},
    )
    change_config(folder, transformers_weights="consolidated.safetensors")


def _named_index(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    placed = {}
    (folder / "parts").mkdir()
    for number in (0, 1):
        part = {name: tensor + 1 for at, (name, tensor) in enumerate(sorted(tensors.items())) if at % 2 == number}
        save_file(part, folder / "parts" / f"part{number}.safetensors", metadata={"format": "pt"})
        placed.update(dict.fromkeys(part, f"parts/part{number}.safetensors"))
    (folder / "mine.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    change_config(folder, transformers_weights="mine.safetensors.index.json")


def _tied_under_its_other_name(folder: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
        return tensors

    rewrite(folder, change)


BF16 = torch.bfloat16
MOE = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
HEAD = dict(head_dim=8)

SAMPLES = [
    # Decoders
    Sample("llama", _of("LlamaConfig")),
    Sample("llama-sharded-bf16", _of("LlamaConfig"), dtype=BF16, shard_size="12KB"),
    Sample("llama-tied", _of("LlamaConfig", tie_word_embeddings=True)),
    Sample("llama-tied-under-its-other-name", _of("LlamaConfig", tie_word_embeddings=True), edit=_tied_under_its_other_name, since=5),
    Sample("llama-frequencies-in-file", _of("LlamaConfig"), edit=_computed_frequencies_in_file),
    Sample("llama-both-precisions", _of("LlamaConfig"), edit=_both_precisions),
    Sample("llama-single-beside-index", _of("LlamaConfig"), edit=_single_beside_index),
    Sample("llama-named-weights", _of("LlamaConfig"), edit=_named_weights),
    Sample("llama-named-index", _of("LlamaConfig"), edit=_named_index),
    Sample("llama-no-dtype", _of("LlamaConfig"), dtype=torch.float16, edit=_no_dtype),
    Sample("llama-no-dtype-sharded", _of("LlamaConfig"), dtype=BF16, shard_size="12KB", edit=_no_dtype),
    Sample("llama-cast", _of("LlamaConfig"), options={"dtype": BF16}),
    Sample("llama-base-of-head", _of("LlamaConfig"), loaded_as="AutoModel"),
    Sample("llama-head-of-base", _of("LlamaConfig", tie_word_embeddings=True), "AutoModel", "AutoModelForCausalLM"),
    Sample("llama-classifier", _of("LlamaConfig", pad_token_id=0), "AutoModelForSequenceClassification"),
    Sample("llama-fp8", _of("LlamaConfig"), dtype=BF16, edit=_fp8, since=5),
    Sample("mistral", _of("MistralConfig")),
    Sample("qwen2", _of("Qwen2Config")),
    Sample("qwen3", _of("Qwen3Config", **HEAD)),
    Sample("gemma", _of("GemmaConfig", **HEAD)),
    Sample("gemma2", _of("Gemma2Config", **HEAD)),
    Sample("gemma3-text", _of("Gemma3TextConfig", **HEAD)),
    Sample("phi", _of("PhiConfig")),
    Sample("phi3", _of("Phi3Config", pad_token_id=0)),
    Sample("gpt2", _of("GPT2Config", bare=True, n_embd=32, n_layer=2, n_head=4, n_positions=64, vocab_size=64)),
    Sample("gpt-neox", _of("GPTNeoXConfig")),
    Sample("gptj", _of("GPTJConfig", bare=True, n_embd=32, n_layer=2, n_head=4, n_positions=64, vocab_size=64, rotary_dim=4)),
    Sample("opt", _of("OPTConfig", ffn_dim=48, word_embed_proj_dim=32)),
    Sample("bloom", _of("BloomConfig", bare=True, hidden_size=32, n_layer=2, n_head=4, vocab_size=64)),
    Sample("falcon", _of("FalconConfig")),
    Sample("mpt", _of("MptConfig", bare=True, d_model=32, n_heads=4, n_layers=2, vocab_size=64, max_seq_len=64)),
    Sample("stablelm", _of("StableLmConfig")),
    Sample("olmo2", _of("Olmo2Config")),
    Sample("cohere", _of("CohereConfig")),
    Sample("starcoder2", _of("Starcoder2Config")),
    Sample("granite", _of("GraniteConfig")),
    Sample("xglm", _of("XGLMConfig", bare=True, d_model=32, ffn_dim=48, num_layers=2, attention_heads=4, vocab_size=64)),
    # Mixtures of experts
    Sample("mixtral", _of("MixtralConfig", num_local_experts=4)),
    Sample("mixtral-sharded", _of("MixtralConfig", num_local_experts=12), shard_size="20KB"),
    Sample("qwen2-moe", _of("Qwen2MoeConfig", shared_expert_intermediate_size=16, **MOE)),
    Sample("qwen3-moe", _of("Qwen3MoeConfig", **MOE, **HEAD)),
    Sample(
        "deepseek-v3",
        _of(
            "DeepseekV3Config", moe_intermediate_size=16, n_routed_experts=4, n_group=2, topk_group=1, num_experts_per_tok=2,
            q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, first_k_dense_replace=1,
            num_key_value_heads=4,
        ),
        dtype=BF16,
    ),
    Sample("olmoe", _of("OlmoeConfig", num_experts=4, num_experts_per_tok=2)),
    Sample("gpt-oss", _of("GptOssConfig", num_local_experts=4, num_experts_per_tok=2, **HEAD)),
    # State space, and mixtures with it
    Sample("mamba", _of("MambaConfig", state_size=8, vocab_size=64)),
    Sample("mamba2", _of("Mamba2Config", bare=True, hidden_size=32, num_heads=8, head_dim=8, state_size=8, num_hidden_layers=2,
                         n_groups=1, vocab_size=64)),
    Sample("jamba", _of("JambaConfig", num_experts=4, num_hidden_layers=4, attn_layer_period=2, attn_layer_offset=1,
                        expert_layer_period=2, expert_layer_offset=1, mamba_d_state=8, mamba_dt_rank=4,
                        use_mamba_kernels=False)),
    Sample("recurrent-gemma", _of("RecurrentGemmaConfig", num_hidden_layers=3, lru_width=32)),
    Sample("rwkv", _of("RwkvConfig", vocab_size=64, attention_hidden_size=32)),
    # Encoder-decoders
    Sample("t5", _of("T5Config", bare=True, d_model=32, d_ff=48, d_kv=8, num_layers=2, num_heads=4, vocab_size=64),
           "AutoModelForSeq2SeqLM"),
    Sample("t5-untied-bf16", _of("T5Config", bare=True, d_model=32, d_ff=48, d_kv=8, num_layers=2, num_heads=4, vocab_size=64,
                                 tie_word_embeddings=False, feed_forward_proj="gated-gelu"),
           "AutoModelForSeq2SeqLM", dtype=BF16),
    Sample("t5-fp16", _of("T5Config", bare=True, d_model=32, d_ff=48, d_kv=8, num_layers=2, num_heads=4, vocab_size=64),
           "AutoModelForSeq2SeqLM", options={"dtype": torch.float16}),
    Sample("bart", _of("BartConfig", bare=True, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                       decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, vocab_size=64,
                       max_position_embeddings=64), "AutoModelForSeq2SeqLM"),
    Sample("bart-settings-in-config", _of("BartConfig", bare=True, d_model=32, encoder_layers=2, decoder_layers=2,
                                          encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48,
                                          decoder_ffn_dim=48, vocab_size=64, max_position_embeddings=64),
           "AutoModelForSeq2SeqLM", edit=_settings_in_config),
    Sample("marian", _of("MarianConfig", bare=True, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                         decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, vocab_size=64, pad_token_id=63,
                         decoder_start_token_id=63, max_position_embeddings=64), "AutoModelForSeq2SeqLM"),
    Sample("pegasus", _of("PegasusConfig", bare=True, d_model=32, encoder_layers=2, decoder_layers=2,
                          encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48,
                          vocab_size=64, max_position_embeddings=64), "AutoModelForSeq2SeqLM"),
    # Encoders
    Sample("bert", _of("BertConfig"), "AutoModelForMaskedLM"),
    Sample("bert-gamma-beta", _of("BertConfig"), "AutoModelForMaskedLM",
           edit=rename(("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))),
    Sample("bert-base", _of("BertConfig"), "AutoModel"),
    Sample("roberta", _of("RobertaConfig"), "AutoModelForMaskedLM"),
    Sample("distilbert", _of("DistilBertConfig", bare=True, dim=32, hidden_dim=48, n_layers=2, n_heads=4, vocab_size=64),
           "AutoModelForMaskedLM"),
    Sample("albert", _of("AlbertConfig", embedding_size=16), "AutoModelForMaskedLM"),
    Sample("electra", _of("ElectraConfig", embedding_size=16), "AutoModelForMaskedLM"),
    Sample("deberta-v2", _of("DebertaV2Config"), "AutoModelForMaskedLM"),
    Sample("modernbert", _of("ModernBertConfig", pad_token_id=0, cls_token_id=1, sep_token_id=2, eos_token_id=2,
                             bos_token_id=1), "AutoModelForMaskedLM"),
    Sample("esm", _of("EsmConfig", pad_token_id=1, mask_token_id=2, position_embedding_type="rotary"), "AutoModelForMaskedLM"),
    # Vision
    Sample("vit", _of("ViTConfig", bare=True, **VISION), "AutoModelForImageClassification"),
    Sample("dinov2", _of("Dinov2Config", bare=True, **VISION), "AutoModel"),
    Sample("swin", _of("SwinConfig", bare=True, image_size=16, patch_size=2, embed_dim=16, depths=[1, 1], num_heads=[2, 2],
                       window_size=4), "AutoModelForImageClassification"),
    Sample("convnext", _of("ConvNextConfig", bare=True, hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
           "AutoModelForImageClassification"),
    Sample("resnet", _of("ResNetConfig", bare=True, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]),
           "AutoModelForImageClassification"),
    Sample("segformer", _of("SegformerConfig", bare=True, num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1],
                            hidden_sizes=[8, 16], patch_sizes=[3, 3], strides=[2, 2], num_attention_heads=[1, 2],
                            mlp_ratios=[2, 2], decoder_hidden_size=16), "AutoModelForSemanticSegmentation"),
    Sample("clip", _of("CLIPConfig", bare=True, text_config=dict(SMALL), vision_config=dict(VISION), projection_dim=16),
           "AutoModel"),
    Sample("clip-vision-of-clip", _of("CLIPConfig", bare=True, text_config=dict(SMALL), vision_config=dict(VISION),
                                      projection_dim=16), "AutoModel", "CLIPVisionModel"),
    Sample("siglip", _of("SiglipConfig", bare=True, text_config=dict(SMALL), vision_config=dict(VISION)), "AutoModel"),
    # Speech
    Sample("whisper", _of("WhisperConfig", bare=True, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                          decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, vocab_size=64, num_mel_bins=8,
                          max_source_positions=32, max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                          decoder_start_token_id=1), "AutoModelForSpeechSeq2Seq"),
    Sample("wav2vec2", _of("Wav2Vec2Config", bare=True, **SPEECH), "AutoModelForCTC"),
    Sample("wav2vec2-weight-norm-of-old", _of("Wav2Vec2Config", bare=True, **SPEECH), "AutoModelForCTC",
           edit=rename(("parametrizations.weight.original0", "weight_g"), ("parametrizations.weight.original1", "weight_v"))),
    Sample("hubert", _of("HubertConfig", bare=True, **SPEECH), "AutoModelForCTC"),
    # Several modalities
    Sample("llava", _of("LlavaConfig", bare=True, text_config={"model_type": "llama", **SMALL},
                        vision_config={"model_type": "clip_vision_model", **VISION}, image_token_index=63),
           "AutoModelForImageTextToText"),
    Sample("qwen2-vl", _of("Qwen2VLConfig", bare=True, vision_start_token_id=61, image_token_id=62, video_token_id=63,
                           text_config={"model_type": "qwen2_vl_text", **SMALL,
                                        "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]}},
                           vision_config=dict(depth=2, embed_dim=32, hidden_size=32, num_heads=4, patch_size=4)),
           "AutoModelForImageTextToText"),
    Sample("gemma3-vision", _of("Gemma3Config", bare=True, text_config={**SMALL, **HEAD},
                                vision_config={"model_type": "siglip_vision_model", **VISION}, mm_tokens_per_image=4),
           "AutoModelForImageTextToText"),
    Sample("blip", _of("BlipConfig", bare=True, text_config={**SMALL, "encoder_hidden_size": 32, "bos_token_id": 1},
                       vision_config=dict(VISION), projection_dim=16), "BlipForConditionalGeneration"),
]  # fmt: skip
