"""The peers keep the promises of the product's searches."""

from __future__ import annotations

import importlib.util

import pytest

from benchmarks import peers
from tests.search import test_local_search as contract

NEEDS = {"tpe": "optuna", "random": "optuna", "gp": "torch", "mf-gpoeo": "numpy"}


@pytest.mark.parametrize(
    "promise",
    [
        contract.test_a_search_begins_with_the_reference_ends_by_itself_and_keeps_the_bound,
        contract.test_a_repeated_request_returns_the_same_trial,
        contract.test_a_setting_that_cannot_be_set_is_not_asked_for_again_nor_held,
        contract.test_a_tried_setting_that_can_no_longer_be_set_is_not_held,
    ],
    ids=lambda promise: promise.__name__,
)
@pytest.mark.parametrize("name", NEEDS)
def test_a_peer_keeps_the_promise(name: str, promise: object, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"no {NEEDS[name]} here")
    monkeypatch.setattr(contract, "make_search", peers.make_search)
    promise(name)  # type: ignore[operator]
