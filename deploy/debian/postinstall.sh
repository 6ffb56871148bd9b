#!/bin/sh
# Lets the manager write its keys beside its settings, and nobody but root replace those of the agent, which runs as root:
# in a sticky folder a file belongs to its owner. Units are neither enabled nor restarted: the order of an upgrade is
# the administrator's (docs/howto/upgrade.md).
set -e
chown root:backendai /etc/backend.ai
chmod 3770 /etc/backend.ai
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
