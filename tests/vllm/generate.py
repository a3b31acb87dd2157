"""Runs vLLM and prints what it generates, for test_vllm.py: a process of its own, as an engine
keeps its state to the end.

generate.py JSON: a list of the keyword arguments of one engine each. The last line of stdout is a
JSON array with the tokens that each engine gives for each prompt, and the logarithm of their
probability. With HEADRACE_TEST_STREAM_FIRST this process streams before it starts the first engine.
"""

import gc
import json
import os
import sys

from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt

PROMPTS = ([3, 14, 15, 92, 65], [35, 89, 79], [32, 38, 46, 26, 43, 38, 32, 79])
COMMON = {
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "max_model_len": 64,
    "max_num_seqs": 4,
    "kv_cache_memory_bytes": 64 << 20,
    "seed": 0,
}


def main() -> None:
    answers = []
    engines = json.loads(sys.argv[1])
    if os.environ.get("HEADRACE_TEST_STREAM_FIRST"):
        from headrace import ModelStreamer

        for _ in ModelStreamer(engines[0]["model_loader_extra_config"]["uri"]).stream_sync():
            pass
    for arguments in engines:
        engine = LLM(**{**COMMON, **arguments})
        sampling = SamplingParams(
            temperature=0, max_tokens=12, detokenize=False, ignore_eos=True, logprobs=1
        )
        outputs = engine.generate(
            [TokensPrompt(prompt_token_ids=prompt) for prompt in PROMPTS], sampling, use_tqdm=False
        )
        answers.append(
            [
                [list(each.token_ids), each.cumulative_logprob]
                for output in outputs
                for each in output.outputs
            ]
        )
        del engine
        gc.collect()
    print(json.dumps(answers))


# vLLM may start its workers anew from this file.
if __name__ == "__main__":
    main()
