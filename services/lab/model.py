"""A model trained by Spark as numbers in a file, and its arithmetic in Python: a scaler, the products of two features, a regression.

An actor that predicts must do the same in every replay. So the file is pinned by its digest, and nothing but the file has an influence:
no session of Spark, and no sum whose last bits depend on the order or on the version of Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from math import fsum
from pathlib import Path

import msgspec


class Model(msgspec.Struct, frozen=True):
    """StandardScaler, PolynomialExpansion of degree 2 and LinearRegression of ``pyspark.ml``, after training."""

    version: str
    features: tuple[str, ...]
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    coefficients: tuple[float, ...]
    intercept: float

    def predict(self, features: Sequence[float]) -> float:
        """The prediction for features in the order of ``self.features``."""
        scaled = [
            (value - mean) / deviation
            for value, mean, deviation in zip(features, self.means, self.deviations, strict=True)
        ]
        terms: list[float] = []
        for number, value in enumerate(scaled):  # in Spark's order: x, xx, y, xy, yy, z, ...
            terms += [value, *(value * other for other in scaled[: number + 1])]
        products = [one * term for one, term in zip(self.coefficients, terms, strict=True)]
        return fsum([*products, self.intercept])


def write(model: Model, file: Path) -> str:
    """Write a model, and return the digest by which it is pinned."""
    content = msgspec.json.format(msgspec.json.encode(model), indent=2) + b"\n"
    file.write_bytes(content)
    return digest_of(content)


def pinned(file: Path, digest: str) -> Model:
    """The model in a file.

    Raises:
        ValueError: The file is another one than was pinned.
    """
    content = file.read_bytes()
    if digest_of(content) != digest:
        raise ValueError(f"{file.name} has the digest {digest_of(content)}, and {digest} is pinned")
    return msgspec.json.decode(content, type=Model)


def digest_of(content: bytes) -> str:
    """The digest of the content of a model's file."""
    return sha256(content).hexdigest()[:16]
