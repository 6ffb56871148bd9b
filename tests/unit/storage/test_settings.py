"""``storage-proxy.toml`` as the specification writes it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from pydantic import ValidationError

from ai.backend.storage.config.settings import StorageSettings

SPEC_EXAMPLE = """
[etcd]
namespace = "local"
addr = { host = "bai-m1", port = 8120 }
user = ""
password = ""

[storage-proxy]
node-id = "i-bai-m1"
num-proc = 2
pid-file = "/home/bai/storage-proxy/storage_proxy.pid"
event-loop = "uvloop"
scandir-limit = 1000
max-upload-size = "100g"
secret = "secure-token-for-users-download-upload-sessions"
session-expire = "1d"
user = 1100
group = 1100

[api.client]
service-addr = { host = "0.0.0.0", port = 6021 }
ssl-enabled = false

[api.manager]
service-addr = { host = "0.0.0.0", port = 6022 }
ssl-enabled = false
secret = "secure-token-to-authenticate-manager-request"

[debug]
enabled = false
asyncio = false
enhanced-aiomonitor-task-info = true

[logging]
level = "INFO"
drivers = ["console", "file"]

[logging.pkg-ns]
"" = "WARNING"
"aiotools" = "INFO"
"aiohttp" = "INFO"
"ai.backend" = "INFO"

[logging.console]
colored = true
format = "simple"

[logging.file]
path = "./logs"
filename = "storage-proxy.log"
backup-count = 10
rotation-size = "10M"

[volume]

[volume.local]
backend = "vfs"
path = "/vfroot/local"
"""


def test_the_example_of_the_spec_is_read() -> None:
    """Spec 03-02, "Install Backend.AI Storage Proxy"."""
    settings = StorageSettings.model_validate(tomllib.loads(SPEC_EXAMPLE))
    own = settings.storage_proxy
    assert (own.max_upload_size, own.session_expire, own.owner) == (100 << 30, 86_400.0, (1100, 1100))
    assert own.secret.get_secret_value() == "secure-token-for-users-download-upload-sessions"
    assert "secure-token" not in repr(settings)
    assert settings.api.client.service_addr.port == 6021
    assert settings.volume["local"].path == Path("/vfroot/local")
    assert own.num_proc == 2
    assert settings.logging.drivers == ["console", "file"]
    assert settings.logging.file.rotation_size == 10 << 20


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"1d"', '"tomorrow"'),
        ('"100g"', '"much"'),
        ("num-proc = 2", "num-procs = 2"),
        ("ssl-enabled = false", "ssl-enabled = true"),
        ("scandir-limit = 1000", "scandir-limit = 0"),
        ('backend = "vfs"', ""),
        ('namespace = "local"', 'name-space = "local"'),
        ("asyncio = false", "asynchio = false"),
        ('level = "INFO"', 'level = "LOUD"'),
        ('"aiohttp" = "INFO"', '"aiohttp" = "LOUD"'),
        ('drivers = ["console", "file"]', 'drivers = ["logstahs"]'),
        ("backup-count = 10", "backups = 10"),
        ('event-loop = "uvloop"', 'event-loop = "gevent"'),
        ("group = 1100", "groups = 1100"),
    ],
)
def test_wrong_settings_are_refused_by_name(old: str, new: str) -> None:
    assert old in SPEC_EXAMPLE
    key = new.partition(" = ")[0].strip('"') if " = " in new else old.partition(" = ")[0]
    if " = " not in old:
        key = next(line for line in SPEC_EXAMPLE.splitlines() if old in line).partition(" = ")[0]
    with pytest.raises(ValidationError, match=f"{key}|ssl-cert"):
        StorageSettings.model_validate(tomllib.loads(SPEC_EXAMPLE.replace(old, new)))
