"""Fixtures that the tests of the benchmarks share with the others."""

from tests.conftest import (  # noqa: F401
    c_nvml,
    data_dir,
    own_surroundings,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_xdist_make_scheduler,
    simulated,
    stepped,
)
