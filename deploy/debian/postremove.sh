#!/bin/sh
# Removes what the daemons of a package have made when it is purged. Folders of users, below /srv, stay.
set -e
if [ "$1" = purge ]; then
    case "$DPKG_MAINTSCRIPT_PACKAGE" in
    backendai-manager) made="manager.key manager.key_secret secrets.key agents" ;;
    backendai-agent) made="agent.key agent.key_secret" ;;
    *) made="" ;;
    esac
    for name in $made; do
        rm -rf "/etc/backend.ai/$name"
    done
    if [ "$DPKG_MAINTSCRIPT_PACKAGE" = backendai ]; then
        if getent passwd backendai >/dev/null; then
            userdel backendai
        fi
    else
        rm -rf --one-file-system "/var/lib/backend.ai/${DPKG_MAINTSCRIPT_PACKAGE#backendai-}"
    fi
    for folder in /etc/backend.ai /var/lib/backend.ai; do
        rmdir --ignore-fail-on-non-empty "$folder" 2>/dev/null || true
    done
fi
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
