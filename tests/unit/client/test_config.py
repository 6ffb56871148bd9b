import pytest

from ai.backend.client.config import DEFAULTS, APIConfig, get_config, get_env, set_config
from ai.backend.client.exceptions import BackendClientError, MissingCredentials
from ai.backend.client.types import Undefined, undefined


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith(("BACKEND_", "SORNA_")):
            monkeypatch.delenv(name)


def test_defaults() -> None:
    config = APIConfig()
    assert str(config.endpoint).rstrip("/") == DEFAULTS["endpoint"]
    assert (config.domain, config.group, config.hash_type) == ("default", "default", "sha256")
    assert (config.connection_timeout, config.read_timeout) == (10.0, 0.0)
    assert not config.has_credentials
    with pytest.raises(MissingCredentials):
        _ = config.access_key
    with pytest.raises(MissingCredentials):
        _ = config.secret_key


def test_the_environment_and_its_older_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORNA_ACCESS_KEY", "OLD")
    monkeypatch.setenv("BACKEND_SECRET_KEY", "secret")
    monkeypatch.setenv("BACKEND_VFOLDER_MOUNTS", "a, b,,c")
    monkeypatch.setenv("BACKEND_SKIP_SSLCERT_VALIDATION", "yes")
    config = APIConfig()
    assert (config.access_key, config.secret_key) == ("OLD", "secret")
    assert config.vfolder_mounts == ("a", "b", "c")
    assert config.skip_sslcert_validation
    monkeypatch.setenv("BACKEND_ACCESS_KEY", "NEW")
    assert APIConfig().access_key == "NEW"


def test_arguments_win() -> None:
    config = APIConfig(endpoint="http://a,https://b:8/p", access_key="K", secret_key="S", vfolder_mounts=["m"])
    assert [str(url) for url in config.endpoints] == ["http://a", "https://b:8/p"]
    assert config.has_credentials
    config.fail_over()
    assert str(config.endpoint) == "https://b:8/p"
    config.fail_over()
    assert str(config.endpoint) == "http://a"


def test_an_empty_access_key_is_anonymous() -> None:
    config = APIConfig(access_key="")
    assert config.is_anonymous
    assert config.access_key == ""
    assert not APIConfig().is_anonymous


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ENDPOINT", "ftp://x"), ("ENDPOINT", ","), ("ENDPOINT", "localhost:8090"), ("ENDPOINT_TYPE", "session"),
        ("HASH_TYPE", "md5"), ("READ_TIMEOUT", "soon"), ("CONNECTION_TIMEOUT", "-1"), ("READ_TIMEOUT", "nan"),
        ("SKIP_SSLCERT_VALIDATION", "perhaps"),
    ],
)  # fmt: skip
def test_a_bad_value_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"BACKEND_{name}", value)
    with pytest.raises(BackendClientError, match=name if name != "HASH_TYPE" else "hash_type"):
        APIConfig()


def test_get_env(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKEND_NUMBER", "5")
    assert get_env("number", clean=int) == 5
    assert get_env("missing", "7", clean=int) == 7
    assert get_env("missing", None) is None
    with pytest.raises(KeyError):
        get_env("missing")


def test_addresses_of_storage_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    assert APIConfig().storage_proxy_address_map == APIConfig.DEFAULTS["storage_proxy_address_map"] == {}
    monkeypatch.setenv("BACKEND_STORAGE_PROXY_ADDRESS_MAP", "http://inner:6021=https://outer, http://b=http://c")
    expected = {"http://inner:6021": "https://outer", "http://b": "http://c"}
    assert APIConfig().storage_proxy_address_map == expected
    assert APIConfig(storage_proxy_address_map={"a": "b"}).storage_proxy_address_map == {"a": "b"}
    monkeypatch.setenv("BACKEND_STORAGE_PROXY_ADDRESS_MAP", "http://inner")
    with pytest.raises(BackendClientError, match="STORAGE_PROXY_ADDRESS_MAP"):
        APIConfig()


@pytest.mark.parametrize("key", ["access_key", "secret_key", "domain"])
def test_a_value_with_a_line_end_is_refused(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv(f"BACKEND_{key.upper()}", "value\r")
    with pytest.raises(BackendClientError, match=f"BACKEND_{key.upper()}"):
        APIConfig()


def test_undefined_is_one_value() -> None:
    assert undefined is Undefined.token


def test_the_configuration_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    set_config(None)
    monkeypatch.setenv("BACKEND_DOMAIN", "mine")
    assert get_config().domain == "mine"
    assert get_config() is get_config()
    other = APIConfig(domain="other")
    set_config(other)
    assert get_config() is other
    set_config(None)
