#!/bin/sh
# Write every lock anew: `make lock`. ARGS for uv may follow, e.g. `--upgrade` or `--upgrade-package rich`.
# A lock holds names, versions, markers and hashes, and nothing about the index or the machine it was made on.
# SPDX-License-Identifier: Apache-2.0
set -eu
cd "$(dirname "$0")/.."

compile() { # compile LOCK SOURCE...
    lock=$1
    shift
    echo "  $lock" >&2
    # colorama is only ever wanted on Windows, where moongate does not run
    "${BIN:-.venv/bin}/uv" --no-config pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --no-header --no-annotate --no-emit-package colorama \
        --output-file "$lock" "$@" ${ARGS:-}
    sed -i '/^#/d' "$lock"
}

compile requirements.lock pyproject.toml
compile requirements-answers.lock pyproject.toml --extra answers --constraints requirements.lock
compile requirements-tls.lock pyproject.toml --extra tls --constraints requirements.lock
compile requirements-http2.lock pyproject.toml --extra http2 --constraints requirements.lock
compile requirements-plots.lock pyproject.toml --extra plots --constraints requirements.lock
compile requirements-dev.lock pyproject.toml --all-extras --group dev --constraints requirements.lock
sed -n 's/^requires = \["\(setuptools[^"]*\)"\]$/\1/p' pyproject.toml >requirements-build.in
compile requirements-build.lock requirements-build.in
rm requirements-build.in
