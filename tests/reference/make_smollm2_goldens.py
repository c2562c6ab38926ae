"""Greedy tokens and log-probabilities of SmolLM2-135M-Instruct, read from a GGUF by transformers.

The weights are what transformers makes of the file in float32; each of them is compared here with
what gguf-py alone makes of it, so that a wrong permutation or a wrong type cannot pass unseen.
"""

import argparse
import hashlib
import importlib.metadata
import pathlib

import gguf
import jinja2
import numpy as np
import tokenizers
import torch
import transformers

import smollm2_prompts
from golden_json import write_golden

GENERATED = 64
SCORED = 500
TOP = 5


def contents(reader: gguf.GGUFReader, key: str):
    return reader.fields[key].contents()


def make_tokenizer(reader: gguf.GGUFReader) -> tokenizers.Tokenizer:
    """The file's byte-level BPE with the pre-tokenizer that `tokenizer.ggml.pre` = smollm names."""
    assert contents(reader, "tokenizer.ggml.pre") == "smollm"
    tokens = contents(reader, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in contents(reader, "tokenizer.ggml.merges")]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    result = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    result.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Digits(individual_digits=True),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    result.decoder = tokenizers.decoders.ByteLevel()
    control = gguf.TokenType.CONTROL
    types = contents(reader, "tokenizer.ggml.token_type")
    result.add_special_tokens([t for t, kind in zip(tokens, types) if kind == control])
    return result


def render_template(reader: gguf.GGUFReader, tokens: list, messages: list) -> str:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(contents(reader, "tokenizer.chat_template")).render(
        messages=messages, add_generation_prompt=True,
        bos_token=tokens[contents(reader, "tokenizer.ggml.bos_token_id")],
        eos_token=tokens[contents(reader, "tokenizer.ggml.eos_token_id")])


def hf_name(name: str) -> str:
    """The transformers name of a GGUF tensor of the llama architecture."""
    outer = {"token_embd.weight": "model.embed_tokens.weight",
             "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}
    if name in outer:
        return outer[name]
    inner = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj",
             "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    _, layer, part, suffix = name.split(".")
    return f"model.layers.{layer}.{inner[part]}.{suffix}"


def unpermuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """Undoes the reordering of query and key rows that the conversion to GGUF does per head."""
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, half, 2, -1).swapaxes(1, 2).reshape(rows.shape)


def check_weights(model, reader: gguf.GGUFReader) -> None:
    state = model.state_dict()
    heads = {"attn_q": contents(reader, "llama.attention.head_count"),
             "attn_k": contents(reader, "llama.attention.head_count_kv")}
    for tensor in reader.tensors:
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        for part, count in heads.items():
            if f".{part}." in tensor.name:
                expected = unpermuted(expected, count)
        actual = state[hf_name(tensor.name)].numpy()
        np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-7, err_msg=tensor.name)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    config = model.config
    assert abs(config.rms_norm_eps - 1e-5) < 1e-9
    assert config.rope_parameters["rope_theta"] == contents(reader, "llama.rope.freq_base")


@torch.inference_mode()
def greedy(model, prompt: list) -> tuple:
    """Token ids and, for each, how far its log-probability lies above the second best's."""
    ids, margins = [], []
    cache = transformers.DynamicCache(config=model.config)
    step = torch.tensor([prompt])
    for _ in range(GENERATED):
        logits = model(step, past_key_values=cache, use_cache=True).logits[0, -1]
        best = torch.topk(logits, 2)
        ids.append(int(best.indices[0]))
        margins.append(float(best.values[0] - best.values[1]))
        step = torch.tensor([[ids[-1]]])
    # The same in one pass without a cache: both must tell the same story.
    logits = model(torch.tensor([prompt + ids[:-1]]), use_cache=False).logits[0, len(prompt) - 1:]
    best = torch.topk(logits, 2, dim=-1)
    gaps = best.values[:, 0] - best.values[:, 1]
    for i, (cached, whole) in enumerate(zip(margins, gaps.tolist())):
        assert abs(cached - whole) < 2e-3, (i, cached, whole)
        assert cached < 2e-3 or ids[i] == int(best.indices[i, 0]), i
    return ids, [round(m, 5) for m in margins]


@torch.inference_mode()
def score(model, ids: list) -> list:
    log_probs = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), dim=-1)
    positions = []
    for i in range(SCORED):
        top = torch.topk(log_probs[i], TOP)
        positions.append({"logprob": round(float(log_probs[i, ids[i + 1]]), 5),
                          "top_ids": top.indices.tolist(),
                          "top_logprobs": [round(v, 5) for v in top.values.tolist()]})
    return positions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    reader = gguf.GGUFReader(args.model)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        args.model.parent, gguf_file=args.model.name, dtype=torch.float32)
    model.eval()
    check_weights(model, reader)
    tokenizer = make_tokenizer(reader)
    tokens = contents(reader, "tokenizer.ggml.tokens")
    eos = contents(reader, "tokenizer.ggml.eos_token_id")

    texts = [(name, render_template(reader, tokens, messages), messages)
             for name, messages in smollm2_prompts.CONVERSATIONS]
    texts += [(name, text, None) for name, text in smollm2_prompts.RAW_TEXTS]
    prompts = []
    for name, text, messages in texts:
        prompt_ids = tokenizer.encode(text).ids
        assert tokenizer.decode(prompt_ids, skip_special_tokens=False) == text, name
        ids, margins = greedy(model, prompt_ids)
        prompt = {"name": name, "text": text, "is_chat": messages is not None,
                  "prompt_ids": prompt_ids, "generated_ids": ids, "margins": margins,
                  "eos_index": ids.index(eos) if eos in ids else -1}
        prompts.append(prompt)
        print(f"{name}: {len(prompt_ids)} tokens, eos at {prompt['eos_index']}, smallest margin "
              f"{min(margins)}: {tokenizer.decode(ids, skip_special_tokens=False)!r}", flush=True)

    scored_ids = tokenizer.encode(smollm2_prompts.LONG_TEXT).ids
    assert len(scored_ids) > SCORED, len(scored_ids)
    scored_ids = scored_ids[:SCORED + 1]
    write_golden(args.out, {
        "made_with": {name: importlib.metadata.version(name)
                      for name in ("torch", "transformers", "gguf", "tokenizers", "numpy")},
        "model_file": args.model.name,
        "model_sha256": hashlib.sha256(args.model.read_bytes()).hexdigest(),
        "eos_id": eos,
        "prompts": prompts,
        "scored": {"text": tokenizer.decode(scored_ids), "ids": scored_ids,
                   "positions": score(model, scored_ids)},
    })


if __name__ == "__main__":
    main()
