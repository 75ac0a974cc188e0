"""Greedy tokens by the offline engine. Arguments: model, JSON of prompts and options.

Prints JSON: the tokens of each prompt, and how many drafts were accepted.
"""

import json
import os
import sys

ACCEPTED = "vllm:spec_decode_num_accepted_tokens"
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


def main(model: str, order: str) -> None:
    from vllm import LLM, SamplingParams

    wanted = json.loads(order)
    options = {
        "max_model_len": 512,
        "gpu_memory_utilization": 0.3,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 256,
        **wanted["options"],
    }
    llm = LLM(model=model, disable_log_stats=False, **options)
    prompts = [{"prompt_token_ids": prompt} for prompt in wanted["prompts"]]
    sampling = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True)
    outputs = llm.generate(prompts, sampling)
    tokens = [list(o.outputs[0].token_ids) for o in outputs]
    accepted = [m.value for m in llm.get_metrics() if m.name == ACCEPTED]
    sys.stdout.write("\n" + json.dumps([tokens, sum(accepted)]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
