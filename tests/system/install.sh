#!/bin/sh
# Installs the Debian packages that the system tests use. Needs root; does nothing where they are already there.
set -eu
missing=
command -v prometheus >/dev/null && command -v promtool >/dev/null || missing="$missing prometheus"
command -v nginx >/dev/null || missing="$missing nginx-light"
command -v chromium >/dev/null || missing="$missing chromium"
[ -n "$missing" ] || exit 0
if [ "$(id -u)" -ne 0 ]; then
    echo "test-system: not installed:$missing; run as root, or: apt-get install$missing" >&2
    exit 1
fi
echo "test-system: installing$missing (no server is started)"
apt-get update -qq
# shellcheck disable=SC2086  # a list of names
DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends $missing >/dev/null
