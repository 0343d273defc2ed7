"""Digests of public parameters by value: renaming a class or a field does not change them."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np


def digest_of_values(content: Any) -> str:
    """SHA-256 of nested numbers, texts, sequences, dataclasses and element types."""
    return hashlib.sha256(json.dumps(_plain(content)).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Convert a value to JSON; a dataclass becomes the list of its values, after its `name` if it has one."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return [[_plain(key), _plain(each)] for key, each in value.items()]
    if isinstance(value, list | tuple | frozenset):
        return [_plain(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, "name", None), *(_plain(each) for each in _values(value))]
    if isinstance(value, type | np.dtype):
        return np.dtype(value).str
    raise TypeError(f"{type(value).__name__} has no stable digest")


def _values(value: Any) -> list[Any]:
    """A dataclass's values; those marked as optional are left out while they are 0."""
    named = [(getattr(value, field.name), field.metadata.get("optional", False)) for field in fields(value)]
    return [each for each, optional in named if each or not optional]
