#!/bin/sh
# Installs the Debian packages that the system tests use. Needs root; does nothing where they are already there.
set -eu
command -v prometheus >/dev/null && command -v promtool >/dev/null && exit 0
if [ "$(id -u)" -ne 0 ]; then
    echo "test-system: prometheus is not installed; run as root, or: apt-get install prometheus" >&2
    exit 1
fi
echo "test-system: installing prometheus (its own server is not started)"
apt-get update -qq
DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends prometheus >/dev/null
