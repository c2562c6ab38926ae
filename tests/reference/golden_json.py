"""How every golden of this folder is written: JSON with arrays of numbers kept on one line."""

import base64
import json
import pathlib

import numpy as np


def base64_of(array: np.ndarray) -> str:
    """Little-endian bytes of the array, row-major, as standard base64."""
    array = np.ascontiguousarray(array)
    return base64.b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode("ascii")


def _render(value, indent: int) -> str:
    pad = " " * (indent + 1)
    if isinstance(value, dict):
        items = [f"{pad}{json.dumps(k)}: {_render(v, indent + 1)}" for k, v in value.items()]
        return "{\n" + ",\n".join(items) + "\n" + " " * indent + "}"
    if isinstance(value, list) and any(isinstance(v, (dict, list)) for v in value):
        items = [pad + _render(v, indent + 1) for v in value]
        return "[\n" + ",\n".join(items) + "\n" + " " * indent + "]"
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def write_golden(path: pathlib.Path, golden: dict) -> None:
    """Writes `golden` so that a later change shows as a readable diff."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_render(golden, 0) + "\n", encoding="utf-8")
    print(f"{path}: {path.stat().st_size} bytes")
