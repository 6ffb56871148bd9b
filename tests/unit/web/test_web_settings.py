"""The file of the web server: the manual's examples load, and what has no effect is named."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from ai.backend.common.errors import InvalidInput
from ai.backend.infra.settings import load_settings
from ai.backend.infra.settings.published import keys_without_effect
from ai.backend.web.config.settings import WebSettings
from ai.backend.web.pages.config_file import console_configuration

PUBLISHED = """
[service]
ip = "0.0.0.0"
port = 8080
wsproxy.url = {url = "http://127.0.0.1:5050"}
mode = "webui"
enable_signup = false
enable_2FA = true
hide_agents = true
[resources]
allow_non_auth_tcp = false
max_memory_per_container = 1000
max_file_upload_size = 4294967296
[security]
request_policies = ["reject_metadata_local_link_policy", "reject_access_for_unsafe_file_policy"]
response_policies = ["set_content_type_nosniff_policy"]
[environments]
[ui]
menu_blocklist = "pipeline,statistics"
[api]
domain = "default"
endpoint = "http://bai-m1:8081,http://bai-m2:8081/"
text = "Backend.AI"
ssl-verify = false
auth_token_name = 'sToken'
[session]
redis.addr = "bai-m1:8110"
redis.db = 5
redis.password = "develove"
max_age = 604800  # 1 week
flush_on_startup = false
login_block_time = 1200  # 20 min (in sec)
login_allowed_fail_count = 10
max_count_for_preopen_ports = 10
[webserver]
[logging]
level = "INFO"
drivers = ["console", "file"]
[debug]
enabled = false
[plugin]
[pipeline]
endpoint = "http://127.0.0.1:9500"
frontend-endpoint = "http://127.0.0.1:3000"
[otel]
enabled = true
"""


def load(tmp_path: Path, text: str) -> WebSettings:
    path = tmp_path / "webserver.conf"
    path.write_text(text)
    return load_settings(WebSettings, name="webserver", path=path)


def test_the_published_file_loads_and_names_what_has_no_effect(tmp_path: Path) -> None:
    settings = load(tmp_path, PUBLISHED)
    assert settings.api.endpoint == ["http://bai-m1:8081", "http://bai-m2:8081"]
    assert settings.session.redis.url == "redis://:develove@bai-m1:8110/5"
    assert settings.service.wsproxy.url == "http://127.0.0.1:5050"
    assert {key for key, _ in keys_without_effect(settings)} == {
        "pipeline.endpoint",
        "pipeline.frontend-endpoint",
        "webserver",
    }


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[service]\nmode = 'desktop'", "service.mode"),
        ("[service]\ncolour = 1", "service.colour"),
        ("[api]\nendpoint = 'ftp://x'", "api.endpoint"),
        ("[api]\nendpoint = ''", "api.endpoint"),
        ("[security]\nrequest_policies = ['none']", "security"),
        ("[session]\nmax-age = 1", "session.max-age"),
    ],
)
def test_what_cannot_be_is_refused_by_name(tmp_path: Path, text: str, key: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(key)):
        load(tmp_path, text)


def test_the_consoles_configuration_is_toml_whatever_the_settings_hold(tmp_path: Path) -> None:
    settings = load(tmp_path, PUBLISHED.replace('text = "Backend.AI"', 'text = "a \\" b \\n c \\u0007 \\u007f 한국"'))
    document = tomllib.loads(console_configuration(settings, origin="http://console:1"))
    assert document["general"]["apiEndpoint"] == "http://console:1"
    assert document["general"]["apiEndpointText"] == 'a " b \n c \x07 \x7f 한국'
    assert document["general"]["connectionMode"] == "SESSION"
    assert document["general"]["enable2FA"] is True
    assert document["menu"]["blocklist"] == "pipeline,statistics"
    assert "defaultSessionEnvironment" not in document["general"]
