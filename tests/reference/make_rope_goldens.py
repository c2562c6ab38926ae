"""Rotary frequencies and their cosines and sines, from transformers' own functions.

Llama-3 models carry no scaling key in a GGUF but a tensor `rope_freqs` of divisors: those divisors
stand here too, made as plain frequency / scaled frequency.
"""

import argparse
import importlib.metadata
import pathlib

import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from golden_json import write_golden

POSITIONS = [0, 1000, 9000, 40000]

LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}

CASES = [
    ("llama-3.1", 128, 131072, LLAMA3 | {"factor": 8.0}),
    ("llama-3.2-1b", 64, 131072, LLAMA3 | {"factor": 32.0}),
    ("llama-3.2-3b", 128, 131072, LLAMA3 | {"factor": 32.0}),
    ("qwen2.5-yarn", 128, 131072, {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0,
                                   "original_max_position_embeddings": 32768}),
    ("linear-2", 64, 8192, {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}),
    ("plain", 64, 8192, {"rope_type": "default", "rope_theta": 100000.0}),
]


def rounded(tensor: torch.Tensor, digits: int = 9) -> list:
    """Nine significant digits: enough to give back the same float32."""
    return [float(f"{v:.{digits}g}") for v in tensor.tolist()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    out = parser.parse_args().out

    cases = []
    for name, head_dim, context, rope in CASES:
        config = transformers.LlamaConfig(
            hidden_size=4 * head_dim, num_attention_heads=4, num_hidden_layers=1,
            max_position_embeddings=context, rope_parameters=dict(rope))
        plain, _ = LlamaRotaryEmbedding.compute_default_rope_parameters(config)
        embedding = LlamaRotaryEmbedding(config)
        kind = rope["rope_type"]
        scaled, mscale = (plain, 1.0) if kind == "default" else ROPE_INIT_FUNCTIONS[kind](config)
        assert torch.equal(embedding.inv_freq, scaled) and embedding.attention_scaling == mscale
        cos, sin = embedding(torch.zeros(1), torch.tensor([POSITIONS]))
        half = head_dim // 2
        angles = [{"position": position,
                   # Two float32 roundings of angle and frequency, in radians.
                   "tolerance": position * 2.0 ** -22 + 1e-6,
                   "cos": rounded(cos[0, i, :half], 7), "sin": rounded(sin[0, i, :half], 7)}
                  for i, position in enumerate(POSITIONS)]
        case = {"name": name, "head_dim": head_dim, "rope": rope, "mscale": mscale,
                "inv_freq": rounded(scaled)}
        if kind == "llama3":
            case["rope_freqs"] = rounded(plain / scaled)
        cases.append(case | {"angles": angles})
    write_golden(out, {"made_with": {name: importlib.metadata.version(name)
                                     for name in ("torch", "transformers")},
                       "cases": cases})


if __name__ == "__main__":
    main()
