#!/bin/sh
# Makes the user of the daemons that need no root.
set -e
if ! getent passwd backendai >/dev/null; then
    adduser --quiet --system --group --home /var/lib/backend.ai --no-create-home backendai
fi
