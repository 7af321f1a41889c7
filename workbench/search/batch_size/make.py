"""Policies that choose batch sizes, by name."""

from __future__ import annotations

from ...errors import UsageError, shown
from .knowledge_gradient import KnowledgeGradient
from .policy import BatchSizePolicy
from .zeus import DefaultBatchSize, ZeusPolicy


def make_policy(name: str | BatchSizePolicy = "knowledge-gradient") -> BatchSizePolicy:
    """A policy by name: "knowledge-gradient" (ours), "zeus" (the paper's) or "default-batch-size" (best power
    limit, no search), or a given policy. With `safe` our policy keeps the sum of all costs at or below the
    cost of the default.
    """
    if hasattr(name, "ask"):
        return name
    match str(name):
        case "knowledge-gradient":
            return KnowledgeGradient()
        case "zeus":
            return ZeusPolicy()
        case "default-batch-size":
            return DefaultBatchSize()
    raise UsageError(
        f"there is no policy {shown(name)}; choose knowledge-gradient, zeus or default-batch-size"
    )
