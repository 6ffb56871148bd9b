#!/bin/sh
# Lets the manager write its keys beside its settings. Units are neither enabled nor restarted: the order of an upgrade is
# the administrator's (docs/howto/upgrade.md).
set -e
chown root:backendai /etc/backend.ai
chmod 2770 /etc/backend.ai
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
