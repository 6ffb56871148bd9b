#!/bin/sh
# Stops the units of the package when it is removed, not when it is upgraded. Sessions outlive their agent; when it is
# removed nobody could end them any more, so they end with it.
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    for unit in $(dpkg-query --listfiles "$DPKG_MAINTSCRIPT_PACKAGE" | sed -n 's|^/usr/lib/systemd/system/||p'); do
        systemctl disable --now "$unit"
        systemctl kill --signal=KILL "$unit" 2>/dev/null || true
    done
fi
