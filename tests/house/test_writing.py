"""The lint of texts finds the patterns in test names and docstrings, and only there in a test file."""

from __future__ import annotations

from tools import writing

TEST = '''
def test_a_short_cell_says_so() -> None:
    """It tells why.

    The rest is fine.
    """
    assert cell("it says nothing of importance")
'''


def test_the_lint_reads_names_and_docstrings_of_tests_and_no_other_strings() -> None:
    assert list(writing.tests(TEST)) == [
        (2, "A short cell says so."), (2, "It tells why."), (2, "The rest is fine."),
    ]
    assert writing.ROOT / "tests/house/test_writing.py" in writing.files()
