#!/bin/sh
# Put the named programs into .tools/bin: from PATH where they are, else from Debian packages that are downloaded
# and unpacked into .tools/root. Needs no root, installs nothing on the system, starts nothing, and does nothing for
# a program that is already there. Debian 12 or Ubuntu 22.04 and later.
#   tools/unpack.sh nginx wrk redis-server
# SPDX-License-Identifier: Apache-2.0
set -eu
cd "$(dirname "$0")/.."
here=$(pwd)/.tools
mkdir -p "$here/bin" "$here/root"

fail() {
    echo "moongate: $*" >&2
    exit 1
}

package() { # the package that holds program $1
    case $1 in
    nginx) echo nginx-light ;;
    promtool) echo prometheus ;;
    amtool) echo prometheus-alertmanager ;;
    *) echo "$1" ;;
    esac
}

runs() {
    case ${1##*/} in
    nginx) "$1" -v ;;
    wrk) "$1" -v | grep -q '^wrk' ;;
    *) "$1" --version ;;
    esac >/dev/null 2>&1
}

on_path() { # where program $1 is on this machine, our own folder left out
    for dir in $(echo "$PATH" | tr ':' ' ') /usr/local/sbin /usr/sbin /sbin; do
        if [ "$dir" != "$here/bin" ] && [ -x "$dir/$1" ] && runs "$dir/$1"; then
            echo "$dir/$1"
            return
        fi
    done
    return 1
}

apt() { # apt with a state of its own; only the list of installed packages is the machine's
    tool=$1
    shift
    "$tool" -qq -o Dir::State="$here/apt/state" -o Dir::State::status=/var/lib/dpkg/status \
        -o Dir::Cache="$here/apt/cache" -o Dir::Log="$here/apt/log" \
        -o Debug::NoLocking=1 -o APT::Sandbox::User="$(id -un)" -o APT::Get::AllowUnauthenticated=0 "$@"
}

fetch() { # download the packages of the named programs, with those that they need and this machine lacks
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
        fail "cannot unpack $*: needs Debian or Ubuntu. Install them by hand and put them on PATH."
    packages=
    for program in "$@"; do packages="$packages $(package "$program")"; done
    mkdir -p "$here/apt/state/lists/partial" "$here/apt/cache/archives/partial" "$here/apt/log"
    echo "moongate: downloading$packages into .tools" >&2
    # shellcheck disable=SC2086 # a list of words
    apt apt-get update >&2 && apt apt-get install --yes --no-install-recommends --download-only \
        --reinstall $packages >&2 || fail "apt could not download$packages (is a package archive reachable?)"
    for deb in "$here"/apt/cache/archives/*.deb; do
        dpkg-deb --extract "$deb" "$here/root"
    done
    rm -rf "$here/apt"
}

wrap() { # a starter that finds the unpacked libraries wherever the checkout lies
    for dir in usr/bin usr/sbin bin sbin; do
        [ -x "$here/root/$dir/$1" ] || continue
        {
            echo '#!/bin/sh'
            echo 'root=$(dirname "$(readlink -f "$0")")/../root'
            echo 'libs=$root/usr/lib/$(uname -m)-linux-gnu'
            echo 'LD_LIBRARY_PATH=$libs:$root/lib/$(uname -m)-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}'
            echo 'export LD_LIBRARY_PATH'
            echo "exec \"\$root/$dir/$1\" \"\$@\""
        } >"$here/bin/$1"
        chmod +x "$here/bin/$1"
        return
    done
    fail "package $(package "$1") holds no program $1"
}

missing=
for program in "$@"; do
    if [ -e "$here/bin/$program" ] && runs "$here/bin/$program"; then continue; fi
    rm -f "$here/bin/$program"
    if found=$(on_path "$program"); then
        ln -s "$found" "$here/bin/$program"
    else
        missing="$missing $program"
    fi
done
[ -n "$missing" ] || exit 0
# shellcheck disable=SC2086
fetch $missing
for program in $missing; do
    wrap "$program"
    runs "$here/bin/$program" || fail "$program was unpacked into .tools but does not start: $("$here/bin/$program" --version 2>&1)"
done
