"""Pieces of C99: numbers, strings and comments that mean what they should, whatever is in the artifact."""

import re
from collections.abc import Iterable
from typing import Any

import numpy as np

FUNCTIONS = {
    "linear": """
static void linear(const float *x, int inputs, const float *weight, const float *bias, int outputs, float *y)
{
    int i, j;
    for (j = 0; j < outputs; j++)
        y[j] = bias[j];
    for (i = 0; i < inputs; i++)
        for (j = 0; j < outputs; j++)
            y[j] += x[i] * weight[i * outputs + j];
}
""",
    "relu": """
static void relu(float *x, int count)
{
    int i;
    for (i = 0; i < count; i++)
        x[i] = x[i] < 0.0f ? 0.0f : x[i]; /* NaN stays NaN */
}
""",
    "squash": """
static void squash(float *x, int count)
{
    int i;
    for (i = 0; i < count; i++)
        x[i] = tanhf(x[i]);
}
""",
    "layer_norm": """
static void layer_norm(float *x, int count)
{
    float mean = 0.0f, variance = 0.0f;
    int i;
    for (i = 0; i < count; i++)
        mean += x[i] / (float)count;
    for (i = 0; i < count; i++)
        variance += (x[i] - mean) * (x[i] - mean) / (float)count;
    for (i = 0; i < count; i++)
        x[i] = (x[i] - mean) / sqrtf(variance + EPSILON);
}
""",
    "clip": """
static float clip(float x, float low, float high)
{
    return x < low ? low : (x > high ? high : x);
}
""",
    "join": """
static float *join(float *to, const float *from, int count)
{
    int i;
    for (i = 0; i < count; i++)
        to[i] = from[i];
    return to + count;
}
""",
}


def number(value: Any) -> str:
    """A float constant with the same bits."""
    text = f"{float(np.float32(value)):.9g}"
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def array(name: str, values: Any) -> str:
    flat = [number(value) for value in np.ravel(values)]
    lines = [", ".join(flat[i : i + 10]) for i in range(0, len(flat), 10)]
    return f"static const float {name}[{len(flat)}] = {{\n    " + ",\n    ".join(lines) + "\n};\n"


def string(text: str) -> str:
    """A string literal: what is not a plain letter becomes an octal escape, `?` too because of trigraphs. What UTF-8 cannot
    hold is a question mark."""
    plain = re.compile(rb"[A-Za-z0-9 _.,:;/()\[\]{}<>=+*%#&|^~!@$'-]")
    return (
        '"' + "".join(chr(b) if plain.match(bytes([b])) else f"\\{b:03o}" for b in text.encode(errors="replace")) + '"'
    )


def comment(text: str) -> str:
    """Text that cannot end a comment or begin another."""
    return re.sub(r"[^A-Za-z0-9 _.,:()\[\]=+-]", "_", text)


def names(name: str, values: Iterable[str]) -> str:
    listed = ",\n    ".join(string(value) for value in values)
    return f"const char *const {name}[] = {{\n    {listed}\n}};\n"
