"""LightGBM's text of a booster, checked before its C++ reader sees it: that one trusts every number in it."""

from __future__ import annotations

import math
from collections.abc import Mapping

LARGEST_LEAVES, LARGEST_TREES = 4096, 20_000
HEADER = {"num_class": "1", "num_tree_per_iteration": "1"}
# lengths of a tree's arrays over its number of leaves, and what their values are
INNER = {"split_feature": int, "split_gain": float, "threshold": float, "decision_type": int,
         "left_child": int, "right_child": int, "internal_value": float, "internal_weight": float,
         "internal_count": float}
LEAVES = {"leaf_value": float, "leaf_weight": float, "leaf_count": float}


def checked(text: str, inputs: int) -> str:
    """The text with nothing in it but sound trees over so many inputs.

    Raises:
        ValueError: a number that is none, a length that does not fit, a tree that is none; it says which.
    """
    head, *trees = text.partition("\nend of trees")[0].split("\nTree=")
    if not 1 <= len(trees) <= LARGEST_TREES:
        raise ValueError(f"it has {len(trees)} trees, 1 to {LARGEST_TREES} can be")
    lines = [line for line in head.splitlines() if not line.startswith("tree_sizes=")]
    told = _told(lines)
    for name, value in {**HEADER, "max_feature_idx": str(inputs - 1)}.items():
        if told.get(name) != value:
            raise ValueError(f"its trees say {name}={told.get(name)!r}, and {value} is what fits")
    for number, tree in enumerate(trees):
        _check(number, tree, inputs)
    body = "".join(f"\nTree={tree.rstrip()}\n\n" for tree in trees)
    return "\n".join(lines) + f"\n{body}\nend of trees\n"


def _told(lines: list[str]) -> dict[str, str]:
    parts = (line.partition("=") for line in lines)
    return {name: value for name, equals, value in parts if equals}


def _check(number: int, tree: str, inputs: int) -> None:
    first, *lines = tree.splitlines()
    told = _told(lines)
    leaves = _whole(told, "num_leaves")
    if first.strip() != str(number) or not 1 <= leaves <= LARGEST_LEAVES:
        raise ValueError(f"tree {number} calls itself {first[:20]!r} with {leaves} leaves")
    if _whole(told, "num_cat") != 0 or told.get("is_linear", "0") != "0":
        raise ValueError(f"tree {number} has categories or linear leaves, which are never made here")
    arrays = {name: _values(told, name, kind, leaves - 1) for name, kind in INNER.items()}
    for name, kind in LEAVES.items():
        # a tree of one leaf tells its value alone
        _values(told, name, kind, leaves if leaves > 1 or name == "leaf_value" else None)
    if any(not 0 <= feature < inputs for feature in arrays["split_feature"]):
        raise ValueError(f"tree {number} splits on an input that is not there")
    children = [(node, int(child)) for side in ("left_child", "right_child")
                for node, child in enumerate(arrays[side])]
    # every node but the first is the child of an earlier one, and every leaf (~leaf) of one node
    wanted = [*range(1, leaves - 1), *(~leaf for leaf in range(leaves))] if leaves > 1 else []
    if sorted(child for _, child in children) != sorted(wanted):
        raise ValueError(f"tree {number} has nodes that no way leads to, or two")
    if any(0 <= child <= node for node, child in children):
        raise ValueError(f"tree {number} goes in a circle")


def _whole(told: Mapping[str, str], name: str) -> int:
    try:
        return int(told[name])
    except (KeyError, ValueError) as error:
        raise ValueError(f"{name}={told.get(name)!r} is no whole number") from error


def _values(told: Mapping[str, str], name: str, kind: type, length: int | None) -> list[float]:
    words = told.get(name, "").split()
    if length is not None and len(words) != length:
        raise ValueError(f"{name} has {len(words)} numbers where {length} belong")
    values = [kind(word) for word in words]
    if not all(math.isfinite(value) for value in values):
        raise ValueError(f"{name} has a number that is not finite")
    return values
