"""Tiny random models of every architecture as GGUF files, with reference logits and greedy tokens.

transformers builds each model and computes its logits in float32 from exactly the values that the
file holds. The conversion (names, types, order of the llama query and key rows) is done here.
"""

import argparse
import dataclasses
import importlib.metadata
import pathlib

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as T

from golden_json import base64_of, write_golden
from tiny_weights import stored

PROMPT_TOKENS = 24
LOGIT_POSITIONS = [0, 1, 5, 11, 17, 23]
GENERATED = 16
SMALLEST_MARGIN = 0.02
MERGES = ["h e", "i n", "r e", "o n", "a t", "Ġ t", "Ġt he", "e r", "Ġ a", "in g"]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
ENDOFTEXT, IM_END, PAD = (256 + len(MERGES) + i for i in (0, 2, 3))
VOCABULARY = 256 + len(MERGES) + len(SPECIALS)
CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
          "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


@dataclasses.dataclass
class TinyModel:
    name: str
    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    tied: bool
    # (layer or -1 outside the layers, part of the tensor's name) -> type of a matrix.
    type_of: callable
    rope: dict = dataclasses.field(default_factory=lambda: {"rope_type": "default"})
    rope_theta: float = 10000.0
    biases: bool = False


def all_of(qtype):
    return lambda layer, part: qtype


def alternating(layer, part):
    """bf16 and f16 side by side, and the embedding in f16."""
    return T.BF16 if layer >= 0 and (layer + len(part)) % 2 else T.F16


def one_type_per_layer(layer, part):
    return T.F16 if layer < 0 else [T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0][layer]


def q8_0_with_f16_output(layer, part):
    return T.F16 if part == "output" else T.Q8_0


def k_quants(layer, part):
    """Rows of 256 get the 256-value types in turn; shorter rows what real files fall back to."""
    if layer < 0:
        return T.Q6_K
    if part in ("attn_output", "ffn_down"):
        return [T.MXFP4, T.IQ4_NL, T.Q5_1][layer] if part == "ffn_down" else T.Q5_0
    order = ["attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"]
    types = [T.Q4_K, T.Q2_K, T.Q6_K, T.Q3_K, T.Q5_K, T.IQ4_XS, T.IQ4_NL, T.MXFP4]
    return types[(layer * 3 + order.index(part)) % len(types)]


MODELS = [
    TinyModel("llama_rope_freqs_tied", "llama", 3, 24, 6, 2, 8, 32, True, all_of(T.F32),
              rope={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0, "original_max_position_embeddings": 256}),
    TinyModel("llama_gqa5_bf16", "llama", 4, 30, 5, 1, 16, 32, False, alternating),
    TinyModel("llama_biases", "llama", 3, 32, 4, 4, 8, 32, True, all_of(T.F16), biases=True),
    TinyModel("llama_k_quants", "llama", 3, 256, 2, 1, 16, 32, True, k_quants),
    TinyModel("qwen2_yarn_gqa8", "qwen2", 3, 32, 8, 1, 8, 64, False, q8_0_with_f16_output,
              rope={"rope_type": "yarn", "factor": 4.0,
                    "original_max_position_embeddings": 1024}),
    TinyModel("qwen2_linear", "qwen2", 3, 48, 6, 2, 8, 40, True, all_of(T.F16),
              rope={"rope_type": "linear", "factor": 2.0}),
    TinyModel("qwen3_wide_heads", "qwen3", 5, 32, 2, 1, 128, 32, True, one_type_per_layer,
              rope_theta=1000000.0),
    TinyModel("qwen3_gqa7_f16", "qwen3", 3, 35, 7, 1, 16, 32, False, all_of(T.F16)),
]


def build(tiny: TinyModel, seed: int):
    rope = dict(tiny.rope, rope_theta=tiny.rope_theta)
    factor = tiny.rope.get("factor", 1.0)
    context = int(rope.get("original_max_position_embeddings", 512) * factor)
    common = dict(
        vocab_size=VOCABULARY, hidden_size=tiny.hidden, intermediate_size=tiny.ffn,
        num_hidden_layers=tiny.layers, num_attention_heads=tiny.heads,
        num_key_value_heads=tiny.kv_heads, head_dim=tiny.head_dim, rms_norm_eps=1e-5,
        max_position_embeddings=context, rope_parameters=rope, tie_word_embeddings=tiny.tied,
        bos_token_id=ENDOFTEXT, eos_token_id=IM_END, pad_token_id=PAD)
    if tiny.biases:
        common |= dict(attention_bias=True, mlp_bias=True)
    config_type, model_type = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    }[tiny.architecture]
    model = model_type(config_type(**common)).eval()
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            shape = tuple(parameter.shape)
            if name == "model.norm.weight":
                # Signs differ, or a tied model would repeat the last token of its prompt.
                value = rng.normal(0, 1, shape)
            elif name.endswith("norm.weight"):
                value = rng.uniform(0.5, 1.5, shape)
            elif name.endswith("bias"):
                value = rng.normal(0, 0.3, shape)
            elif "embed_tokens" in name:
                value = rng.normal(0, 0.5, shape)
            else:
                gain = 1.5 if "q_proj" in name or "k_proj" in name else 1.0
                value = rng.normal(0, gain / np.sqrt(shape[-1]), shape)
            parameter.copy_(torch.from_numpy(value.astype(np.float32)))
    return model


def gguf_name(name: str) -> tuple:
    """(GGUF name, layer or -1, part) of a transformers parameter."""
    outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    inner = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q",
             "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
             "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
             "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm",
             "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    stem, suffix = name.rsplit(".", 1)
    if stem in outer:
        return f"{outer[stem]}.{suffix}", -1, outer[stem]
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{inner[part]}.{suffix}", int(layer), inner[part]


def permuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head: first half, second half -> pairs, as the llama architecture stores them."""
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, 2, half, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def byte_symbols() -> list:
    """The printable character by which byte-level BPE writes each byte, in GPT-2's order."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return [chr(b) for b in plain] + [chr(256 + i) for i in range(len(others))]


def add_vocabulary(writer: gguf.GGUFWriter, architecture: str) -> None:
    tokens = byte_symbols() + [merge.replace(" ", "") for merge in MERGES] + SPECIALS
    assert len(tokens) == len(set(tokens)) == VOCABULARY
    is_llama = architecture == "llama"
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe" if is_llama else "qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * (VOCABULARY - len(SPECIALS)) +
                           [gguf.TokenType.CONTROL] * len(SPECIALS))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(ENDOFTEXT)
    writer.add_eos_token_id(IM_END)
    writer.add_pad_token_id(PAD)
    writer.add_add_bos_token(is_llama)
    writer.add_chat_template(CHATML)


def add_hyperparameters(writer: gguf.GGUFWriter, tiny: TinyModel, model) -> None:
    config = model.config
    writer.add_name(tiny.name)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(tiny.hidden)
    writer.add_block_count(tiny.layers)
    writer.add_feed_forward_length(tiny.ffn)
    writer.add_head_count(tiny.heads)
    writer.add_head_count_kv(tiny.kv_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(VOCABULARY)
    writer.add_rope_freq_base(tiny.rope_theta)
    if tiny.head_dim * tiny.heads != tiny.hidden:
        writer.add_key_length(tiny.head_dim)
        writer.add_value_length(tiny.head_dim)
    writer.add_rope_dimension_count(tiny.head_dim)
    kind = tiny.rope["rope_type"]
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(tiny.rope["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(tiny.rope["original_max_position_embeddings"])


def write_gguf(path: pathlib.Path, tiny: TinyModel, model, rng: np.random.Generator) -> dict:
    """Writes the file, puts the values it holds back into `model`, returns the types by name."""
    writer = gguf.GGUFWriter(path, tiny.architecture)
    add_hyperparameters(writer, tiny, model)
    add_vocabulary(writer, tiny.architecture)
    types = {}
    with torch.no_grad():
        for hf_name, parameter in model.named_parameters():
            name, layer, part = gguf_name(hf_name)
            weight = parameter.numpy()
            qtype = T.F32 if weight.ndim == 1 else tiny.type_of(layer, part)
            raw, values = stored(weight, qtype, rng)
            parameter.copy_(torch.from_numpy(values))
            if tiny.architecture == "llama" and part in ("attn_q", "attn_k"):
                raw = permuted(raw, tiny.heads if part == "attn_q" else tiny.kv_heads)
            types[name] = qtype.name
            writer.add_tensor(name, np.ascontiguousarray(raw), raw_dtype=qtype)
    if tiny.rope["rope_type"] == "llama3":
        rotary = model.model.rotary_emb
        plain, _ = rotary.compute_default_rope_parameters(model.config)
        types["rope_freqs.weight"] = "F32"
        writer.add_tensor("rope_freqs.weight", (plain / rotary.inv_freq).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return types


@torch.inference_mode()
def run_prompt(model, prompt: list) -> dict:
    logits = model(torch.tensor([prompt])).logits[0]
    ids, margins = list(prompt), []
    for _ in range(GENERATED):
        best = torch.topk(model(torch.tensor([ids])).logits[0, -1], 2)
        ids.append(int(best.indices[0]))
        margins.append(round(float(best.values[0] - best.values[1]), 5))
    picked = logits[LOGIT_POSITIONS].numpy()
    return {"prompt_ids": prompt, "logit_positions": LOGIT_POSITIONS,
            "max_abs_logit": round(float(np.abs(picked).max()), 4), "logits": base64_of(picked),
            "generated_ids": ids[len(prompt):], "margins": margins}


def is_telling(prompts: list) -> bool:
    """No ties, no special token, no loop on a few tokens."""
    return all(min(p["margins"]) > SMALLEST_MARGIN and len(set(p["generated_ids"])) >= 8 and
               max(p["generated_ids"]) < ENDOFTEXT for p in prompts)


@torch.inference_mode()
def float64_difference(model, prompt: list) -> float:
    """How far float32 is from float64, relative to the largest logit: the noise of the golden."""
    single = model(torch.tensor([prompt])).logits.double()
    double = model.double()(torch.tensor([prompt])).logits
    return float((single - double).abs().max() / double.abs().max())


def make(tiny: TinyModel, out: pathlib.Path) -> None:
    for seed in range(1, 400):
        model = build(tiny, seed)
        rng = np.random.default_rng([seed, 1])
        types = write_gguf(out / f"{tiny.name}.gguf", tiny, model, rng)
        prompts = [run_prompt(model, rng.integers(0, ENDOFTEXT, PROMPT_TOKENS).tolist())
                   for _ in range(2)]
        if is_telling(prompts):
            break
    else:
        raise RuntimeError(f"{tiny.name}: no seed gives distinct tokens without ties")
    write_golden(out / f"{tiny.name}.json", {
        "made_with": {name: importlib.metadata.version(name)
                      for name in ("torch", "transformers", "gguf", "numpy")},
        "file": f"{tiny.name}.gguf", "architecture": tiny.architecture, "seed": seed,
        "vocab_size": VOCABULARY, "layers": tiny.layers, "tensor_types": types,
        "prompts": prompts})
    noise = float64_difference(model, prompts[0]["prompt_ids"])
    print(f"{tiny.name}: seed {seed}, file {(out / f'{tiny.name}.gguf').stat().st_size} bytes, "
          f"float32 noise {noise:.1e}, tokens {prompts[0]['generated_ids']}", flush=True)
    assert noise < 2e-5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--only", help="name of one model", default="")
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    for tiny in MODELS:
        if args.only in ("", tiny.name):
            make(tiny, args.out)


if __name__ == "__main__":
    main()
