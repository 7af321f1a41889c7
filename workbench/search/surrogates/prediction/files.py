"""One file per model: JSON, compressed. What cannot be read, or is another card's, is said in a sentence."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from .... import _paths
from ....errors import UsageError
from .boosting import Trees
from .card import BEFORE, BOTH, FittedCard, Means
from .curves import Nodes
from .physics import CardPhysics

FORMAT = "GPU Energy Workbench clock model"
VERSION = 1
LARGEST_BYTES = 64 << 20
REMEDY = "`workbench profile-gpu` makes it anew"


def stored(card: FittedCard) -> dict[str, Any]:
    means = card.means
    return {
        "nodes": {
            "x": card.nodes.x.tolist(),
            "mu": card.nodes.mu.tolist(),
            "cap": card.nodes.cap.tolist(),
            "max_sm_clock_mhz": card.nodes.max_sm_clock_mhz,
            "max_mem_clock_mhz": card.nodes.max_mem_clock_mhz,
        },
        "names": list(card.names),
        "physics": means.physics.stored(),
        "shares": list(means.shares),
        "trees": [each.stored() for each in means.trees],
        "range": [_open(means.low), _open(means.high)],
        "spreads": {name: [each.stored() for each in card.spreads[name]] for name in BOTH},
        "stretch": list(card.stretch),
        "residuals": card.residuals.tolist(),
        "seen": [_open(each) for each in card.seen],
        "power_unit_w": card.power_unit_w,
        "errors": card.errors.to_dict(as_series=False),
        "lean": card.lean,
    }


def restored(tables: dict[str, Any]) -> FittedCard:
    nodes = tables["nodes"]
    trees = [Trees.restored(each) for each in tables["trees"]]
    low, high = (
        np.array([end if each is None else each for each in values], float)
        for values, end in zip(tables["range"], (-np.inf, np.inf), strict=True)
    )
    spreads = {}
    for name in BOTH:
        pair = [Trees.restored(each) for each in tables["spreads"][name]]
        spreads[name] = (pair[0], pair[1])
    time_share, power_share = (float(each) for each in tables.get("shares", BEFORE))
    if not (0 <= time_share <= 1 and 0 <= power_share <= 1):
        raise ValueError("its shares of physics and trees cannot be")
    x, mu, cap = (np.array(nodes[name], float) for name in ("x", "mu", "cap"))
    residuals = np.array(tables["residuals"], float)
    seen = np.array([[np.nan if each is None else each for each in row] for row in tables["seen"]], float)
    fit = (
        len(x) == len(mu) == len(cap) and residuals.shape == (len(seen), 2 * len(x))
        and seen.shape[1:] == (len(trees[0].inputs),)
    )
    if not fit or not np.isfinite(residuals).all():
        raise ValueError("its tables do not fit each other")
    return FittedCard(
        Nodes(x, mu, cap, nodes["max_sm_clock_mhz"], nodes["max_mem_clock_mhz"]), tuple(tables["names"]),
        Means(
            CardPhysics.restored(tables["physics"]), (trees[0], trees[1]), low, high,
            (time_share, power_share),
        ),
        spreads,
        (float(tables["stretch"][0]), float(tables["stretch"][1])), residuals, seen,
        float(tables["power_unit_w"]), pl.DataFrame(tables["errors"]), bool(tables["lean"]),
    )


def write(path: Path, about: dict[str, Any], card: FittedCard) -> None:
    """Write a model; an older file stays whole until the new one is."""
    text = json.dumps({"format": FORMAT, "version": VERSION, **about, "card": stored(card)})
    try:
        with _paths.replacing(path) as file:
            file.write(gzip.compress(text.encode(), mtime=0))
    except OSError as error:
        raise UsageError(
            f"the clock model cannot be written to {path} ({error.strerror}); name another place"
        ) from error


def read(path: Path) -> tuple[dict[str, Any], FittedCard]:
    """The header and the card's model of a file.

    Raises:
        UsageError: there is no such file, it is damaged, it is something else, or it is of another version.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"the clock model {path} cannot be read ({error.strerror}); {REMEDY}") from error
    try:
        found = json.loads(_unpacked(raw))
    except (OSError, EOFError, ValueError) as error:  # not gzip, cut short, bits turned, not JSON
        raise UsageError(f"the clock model {path} is damaged ({error}); {REMEDY}") from error
    except Exception as error:  # zlib.error is none of the above
        raise UsageError(f"the clock model {path} is damaged ({error}); {REMEDY}") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise UsageError(f"{path} is no clock model; {REMEDY}")
    if found.get("version") != VERSION:
        raise UsageError(
            f"the clock model {path} has version {found.get('version')}, this workbench reads version "
            f"{VERSION}; {REMEDY}"
        )
    try:
        about = {name: found[name] for name in ("gpu", "feature_set", "workloads", "dropped", "made_by")}
        words = [about["gpu"], about["feature_set"], *about["dropped"]]
        if not all(isinstance(each, str) for each in words) or not isinstance(about["workloads"], int):
            raise ValueError("it does not say whose it is")
        card = restored(found["card"])
        _try_out(card)
        return about, card
    # whatever a file of wrong content makes of itself, LightGBM's own errors among it
    except Exception as error:
        raise UsageError(
            f"the clock model {path} is damaged ({type(error).__name__}: {error}); {REMEDY}"
        ) from error


def _unpacked(raw: bytes) -> bytes:
    """What a compressed file holds, if that is not more than any model of ours could be."""
    unpack = zlib.decompressobj(zlib.MAX_WBITS | 16)
    text = unpack.decompress(raw, LARGEST_BYTES)
    if unpack.unconsumed_tail:
        raise ValueError(f"it unpacks to more than {LARGEST_BYTES >> 20} MB")
    if not unpack.eof:
        raise ValueError("it is cut short, or no compressed file")
    return text


def _try_out(card: FittedCard) -> None:
    """Predict once, so that a wrong file is refused when it is read, not in the middle of a job."""
    nodes, about = card.nodes, ("time_error", "power_error")
    settings = np.concatenate([nodes.x, nodes.mu, nodes.cap])
    tops = [each for each in (nodes.max_sm_clock_mhz, nodes.max_mem_clock_mhz) if each is not None]
    if (
        not len(nodes) or not np.all((settings > 0) & (settings <= 2))
        or not all(0 < each < np.inf for each in tops)
    ):
        raise ValueError("its settings cannot be")
    means = card.errors.select(pl.mean(*about)).row(0)
    if not 0 < card.power_unit_w < np.inf or not all(np.isfinite(float(mean)) for mean in means):
        raise ValueError("its watts or its errors cannot be")
    if not all(isinstance(name, str) for name in card.names):
        raise ValueError("its features have no names")
    features = np.full(len(card.names), np.nan)
    features[card.names.index("power_share")] = 0.5
    if not all(np.isfinite(each).all() for each in (*card.nodes_of(features), card.alike(features))):
        raise ValueError("it foretells nothing")
    card.importance()


def _open(values: Any) -> list[float | None]:
    return [float(each) if np.isfinite(each) else None for each in values]
