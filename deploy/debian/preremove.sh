#!/bin/sh
# Stops the units of the package when it is removed, not when it is upgraded. Sessions outlive their agent.
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    for unit in $(dpkg-query --listfiles "$DPKG_MAINTSCRIPT_PACKAGE" | sed -n 's|^/usr/lib/systemd/system/||p'); do
        systemctl disable --now "$unit"
    done
fi
