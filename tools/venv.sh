#!/bin/sh
# Make .venv what the locks say: `tools/venv.sh run` for the product, `tools/venv.sh dev` for its tests as well.
# Does nothing, and needs no network, while the locks, the interpreter and the place of the checkout stay the same.
# SPDX-License-Identifier: Apache-2.0
set -eu
cd "$(dirname "$0")/.."
kind=${1:-run}

fail() {
    echo "moongate: $*" >&2
    exit 1
}

suits() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

choose() {
    if [ -n "${PYTHON:-}" ]; then
        suits "$PYTHON" || fail "PYTHON=$PYTHON is not a Python 3.11 or newer that runs."
        echo "$PYTHON"
        return
    fi
    # the distribution's own first: it is built with profile-guided optimisation, which a call feels (a third less CPU
    # than an interpreter built with default options)
    for name in /usr/bin/python3 python3.13 python3.12 python3.11 python3; do
        if suits "$name" && "$name" -c 'import venv, ensurepip' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    fail "no Python 3.11 or newer found. Debian 12 and later, Ubuntu 24.04 and later:" \
        "sudo apt install python3 python3-venv; Ubuntu 22.04: sudo apt install python3.11 python3.11-venv." \
        "Or name one: make PYTHON=/path/to/python3 ..."
}

fingerprint() { # what an environment of kind $1 was made from
    {
        pwd
        cat pyproject.toml requirements-build.lock
        if [ "$1" = dev ]; then cat requirements-dev.lock; else cat requirements.lock; fi
    } | sha256sum | cut -d ' ' -f 1
}

stamped() {
    [ -e ".venv/$1.stamp" ] && [ "$(cat ".venv/$1.stamp")" = "$(fingerprint "$1")" ]
}

sound() { # .venv runs, was made in this very place, and with the interpreter that was asked for, if one was
    suits .venv/bin/python && [ "$(sed -n 1p .venv/made-for 2>/dev/null)" = "$(pwd)" ] &&
        { [ -z "${PYTHON:-}" ] || [ "$(sed -n 2p .venv/made-for)" = "$PYTHON" ]; }
}

if sound && { stamped "$kind" || { [ "$kind" = run ] && stamped dev; }; }; then
    exit 0
fi
if ! sound; then
    python=$(choose)
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        fail "Python $version lacks its venv module: sudo apt install python$version-venv"
    echo "moongate: making .venv with Python $version" >&2
    rm -rf .venv
    "$python" -m venv .venv
    printf '%s\n%s\n' "$(pwd)" "$python" >.venv/made-for
fi

lock=requirements.lock
[ "$kind" = dev ] && lock=requirements-dev.lock
echo "moongate: installing what $lock names" >&2
pip() {
    .venv/bin/python -m pip --disable-pip-version-check --no-input "$@" ||
        fail "pip could not install the locked packages (is a package index reachable?)"
}
pip install --quiet --require-hashes -r requirements-build.lock -r "$lock"
pip install --quiet --no-deps --no-build-isolation --editable .
rm -f .venv/run.stamp .venv/dev.stamp
fingerprint "$kind" >".venv/$kind.stamp"
