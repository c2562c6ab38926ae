"""Weights of the tiny models: storing them as a GGUF type, and the floats that the type then means.

gguf-py can quantise the simple types. For the others it can only read, so their blocks are random
bits with scales chosen per block such that the values get the wanted spread: any bits are a valid
block, and the reference uses what gguf-py reads from them.
"""

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

# Byte offsets inside a block: (d, dmin or None).
_SCALES = {
    GGMLQuantizationType.Q2_K: (80, 82),
    GGMLQuantizationType.Q3_K: (108, None),
    GGMLQuantizationType.Q4_K: (0, 2),
    GGMLQuantizationType.Q5_K: (0, 2),
    GGMLQuantizationType.Q6_K: (208, None),
    GGMLQuantizationType.IQ4_NL: (0, None),
    GGMLQuantizationType.IQ4_XS: (0, None),
}


def _with_scales(blocks: np.ndarray, qtype, d, dmin) -> np.ndarray:
    blocks = blocks.copy()
    for offset, value in zip(_SCALES[qtype], (d, dmin)):
        if offset is not None:
            half = np.broadcast_to(np.asarray(value, np.float16).reshape(-1, 1), (len(blocks), 1))
            blocks[:, offset:offset + 2] = np.ascontiguousarray(half).view(np.uint8)
    return blocks


def _random_blocks(shape: tuple, qtype, spread: float, rng: np.random.Generator) -> np.ndarray:
    block_values, block_bytes = GGML_QUANT_SIZES[qtype]
    assert shape[-1] % block_values == 0, (shape, qtype)
    count = int(np.prod(shape)) // block_values
    blocks = rng.integers(0, 256, (count, block_bytes), dtype=np.uint8)

    def read(d, dmin):
        return quants.dequantize(_with_scales(blocks, qtype, d, dmin), qtype)

    # With d = 1 and dmin = 0 the scaled codes, with d = 0 and dmin = 1 minus the minima.
    ones, zeros = np.ones(count), np.zeros(count)
    codes = read(ones, zeros).astype(np.float64)
    ratio = zeros
    if _SCALES[qtype][1] is not None:
        minima = read(zeros, ones).astype(np.float64)
        ratio = -codes.mean(axis=1) / minima.mean(axis=1)
        codes = codes + ratio[:, None] * minima
    d = spread / codes.std(axis=1)
    return _with_scales(blocks, qtype, d, d * ratio).reshape(*shape[:-1], -1)


def stored(weight: np.ndarray, qtype: GGMLQuantizationType, rng: np.random.Generator) -> tuple:
    """The bytes (or floats) that go into the file, and the float32 values that they stand for."""
    if qtype in _SCALES:
        raw = _random_blocks(weight.shape, qtype, float(weight.std()), rng)
    else:
        raw = quants.quantize(weight, qtype)
    values = quants.dequantize(raw, qtype).reshape(weight.shape).astype(np.float32)
    assert np.isfinite(values).all()
    return raw, values
