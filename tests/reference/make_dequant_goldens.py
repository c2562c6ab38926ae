"""Blocks of every supported weight type with the floats that gguf-py reads from them.

The blocks are valid and random (fixed seed) with scales of the size that real files have, plus edge
cases: denormal and negative f16 scales, all bits set, sign borders, MXFP4 exponents 0, 1 and 254.
"""

import argparse
import pathlib
import importlib.metadata

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from golden_json import base64_of, write_golden

SEED = 20240607
RANDOM_BLOCKS = 3
DENORMAL_F16 = 0x0007  # 7 * 2^-24
LARGEST_DENORMAL_F16 = 0x03FF

# Byte offset of each f16 scale inside a block.
F16_OFFSETS = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "IQ4_NL": [0], "IQ4_XS": [0],
}


def put_f16(block: np.ndarray, offset: int, value: float) -> None:
    block[offset:offset + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)


def put_f16_bits(block: np.ndarray, offset: int, bits: int) -> None:
    block[offset:offset + 2] = np.frombuffer(np.uint16(bits).tobytes(), np.uint8)


def scaled_blocks(name: str, n_bytes: int, rng: np.random.Generator):
    """Cases of a type whose blocks carry f16 scales: (case name, block)."""
    offsets = F16_OFFSETS[name]

    def random_block(sign: float = 1.0) -> np.ndarray:
        block = rng.integers(0, 256, n_bytes, dtype=np.uint8)
        for offset in offsets:
            put_f16(block, offset, sign * rng.uniform(0.002, 0.05))
        return block

    for i in range(RANDOM_BLOCKS):
        yield f"random {i}", random_block()
    yield "negative scales", random_block(-1.0)
    block = random_block()
    put_f16_bits(block, offsets[0], DENORMAL_F16)
    if len(offsets) > 1:
        put_f16_bits(block, offsets[1], 0x8000 | LARGEST_DENORMAL_F16)
    yield "denormal scales", block
    fills = {"all bits set": 0xFF, "all bits clear": 0x00}
    if name in ("Q3_K", "Q6_K", "Q8_0"):  # types that hold signed bytes or a sign mask
        fills["only top bits set"] = 0x80
    for case, fill in fills.items():
        block = np.full(n_bytes, fill, np.uint8)
        for offset in offsets:
            put_f16(block, offset, 0.015625)
        yield case, block
    if name == "Q6_K":
        block = random_block()
        block[192:208] = np.array([-128, -127, -1, 0, 1, 127, -64, 64] * 2, np.int8).view(np.uint8)
        yield "scales at the sign borders", block


def mxfp4_blocks(n_bytes: int, rng: np.random.Generator):
    for i in range(RANDOM_BLOCKS):
        block = rng.integers(0, 256, n_bytes, dtype=np.uint8)
        block[0] = rng.integers(118, 126)
        yield f"random {i}", block
    for exponent in (0, 1, 2, 127, 128):
        block = rng.integers(0, 256, n_bytes, dtype=np.uint8)
        block[0] = exponent
        yield f"exponent {exponent}", block
    # 2^126 times 4 is past the largest float, so only codes of magnitude 0 to 3 are used here.
    block = rng.integers(0, 256, n_bytes, dtype=np.uint8) & np.uint8(0xBB)
    block[0] = 254
    yield "exponent 254", block


def float_blocks(qtype: GGMLQuantizationType, rng: np.random.Generator):
    values = rng.normal(0, 0.5, 32).astype(np.float32)
    yield "random", quants.quantize(values, qtype).view(np.uint8)
    if qtype == GGMLQuantizationType.F32:
        bits = np.array([0, 1 << 31, 1, 0x807FFFFF, 0x7F7FFFFF, 0x00800000], np.uint32)
    elif qtype == GGMLQuantizationType.F16:
        bits = np.array([0, 0x8000, 1, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x3C00], np.uint16)
    else:
        bits = np.array([0, 0x8000, 1, 0x807F, 0x0080, 0x7F7F, 0xFF7F, 0x3F80], np.uint16)
    yield "zeros, denormals, largest", bits.view(np.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    out = parser.parse_args().out

    types = []
    for name in ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K",
                 "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"):
        qtype = GGMLQuantizationType[name]
        rng = np.random.default_rng([SEED, int(qtype)])
        block_values, block_bytes = GGML_QUANT_SIZES[qtype]
        if name in F16_OFFSETS:
            cases = scaled_blocks(name, block_bytes, rng)
        elif name == "MXFP4":
            cases = mxfp4_blocks(block_bytes, rng)
        else:
            cases = float_blocks(qtype, rng)
        blocks = []
        for case, raw in cases:
            values = quants.dequantize(raw, qtype)
            assert values.dtype == np.float32 and np.isfinite(values).all(), (name, case)
            assert values.size == raw.size // block_bytes * block_values
            blocks.append({"case": case, "raw": base64_of(raw), "values": base64_of(values)})
        types.append({"name": name, "ggml_type": int(qtype), "block_values": block_values,
                      "block_bytes": block_bytes, "blocks": blocks})
    write_golden(out, {"made_with": {"gguf": importlib.metadata.version("gguf")},
                       "types": types})


if __name__ == "__main__":
    main()
