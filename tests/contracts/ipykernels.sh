#!/bin/sh
# Checks live panels against several versions of ipykernel: tests/contracts/ipykernels.sh 7.0.1 7.3.0 7.4.0
# Each is installed, without what it depends on, into a directory that lasts as long as its test.
set -eu
cd "$(dirname "$0")/../.."
python="${PYTHON:-python}"
status=0
for version in "$@"; do
    site="$(mktemp -d)"
    "$python" -m pip install --quiet --no-deps --target "$site" "ipykernel==$version"
    IPYKERNEL_SITE="$site" "$python" -m pytest -q -rs -s tests/contracts/test_subshell.py || status=1
    rm -rf "$site"
done
exit "$status"
