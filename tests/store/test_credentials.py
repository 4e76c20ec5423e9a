"""Where a bucket's URL leads, and with which credentials."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from limpet.kernel.errors import Invalid, Unsupported
from limpet.kernel.store.cloud import CloudStore
from limpet.kernel.store.credentials import locate

PAIR = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}

CREDENTIALS = """
[default]
aws_access_key_id = default-id
aws_secret_access_key = default-secret
[work]
aws_access_key_id = work-id
aws_secret_access_key = work%secret
aws_session_token = work-token
[half]
aws_access_key_id = half-id
"""
CONFIG = """
[default]
region = eu-west-1
[profile work]
region = eu-central-1
endpoint_url = https://store.example
[profile single]
sso_session = corp
region = us-west-2
[profile role]
role_arn = arn:aws:iam::1:role/x
source_profile = work
"""


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(CREDENTIALS)
    (tmp_path / ".aws" / "config").write_text(CONFIG)
    return {"HOME": str(tmp_path)}


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path)}


@pytest.mark.parametrize(
    ("url", "bucket", "prefix"),
    [
        ("s3://acme", "acme", ""),
        ("s3://acme/", "acme", ""),
        ("s3://acme/prod", "acme", "prod"),
        ("s3://acme/prod/eu/", "acme", "prod/eu"),
        ("s3://my_bucket.x/a%20b", "my_bucket.x", "a b"),
        ("gs://acme/prod", "acme", "prod"),
        ("az://acme/prod", "acme", "prod"),
    ],
)
def test_urls(url: str, bucket: str, prefix: str, bare: dict[str, str]) -> None:
    place = locate(url, None, bare)
    assert (place.bucket, place.prefix, place.options) == (bucket, prefix, {})


def test_a_query_names_the_server(bare: dict[str, str]) -> None:
    place = locate("s3://acme/prod?endpoint=http://127.0.0.1:8333&region=eu-1", None, bare)
    assert place.options == {"endpoint": "http://127.0.0.1:8333", "region": "eu-1"}
    assert str(place) == "s3://acme/prod"
    assert locate("az://c?account=me", None, bare).options == {"account_name": "me"}


@pytest.mark.parametrize(
    "url",
    [
        "ftp://acme", "acme", "s3:///prod", "s3://user:pass@acme", "s3://acme:80", "s3://acme#x", "s3://acme/a//b",
        "s3://acme/../b", "s3://acme/%2e%2e/b", "s3://acme/a%0ab", "s3://acme?colour=red", "s3://acme?region=",
        "s3://acme?endpoint=127.0.0.1:8333", "gs://acme?region=eu", "az://acme?region=eu",
    ],
)  # fmt: skip
def test_urls_that_make_no_sense(url: str, bare: dict[str, str]) -> None:
    with pytest.raises(Invalid) as invalid:
        locate(url, None, bare)
    assert invalid.value.hint
    assert len(str(invalid.value).splitlines()) == 1


def test_an_unknown_query_is_told_what_is_known(bare: dict[str, str]) -> None:
    with pytest.raises(Invalid) as invalid:
        locate("s3://acme?colour=red", None, bare)
    assert "endpoint, region" in invalid.value.hint


def test_a_secret_in_the_url_is_not_repeated(bare: dict[str, str]) -> None:
    with pytest.raises(Invalid) as invalid:
        locate("s3://id:hunter2@acme/prod", None, bare)
    assert "hunter2" not in str(invalid.value)


@pytest.mark.parametrize("endpoint", ["http://id:hunter2@minio:9000", "https://hunter2@h", "http://h@hunter2:x"])
def test_an_endpoint_with_a_password_is_refused_and_not_repeated(bare: dict[str, str], endpoint: str) -> None:
    """A service tells its clients the endpoint."""
    with pytest.raises(Invalid, match="has a user or password") as invalid:
        locate(f"s3://acme?endpoint={endpoint}", None, bare)
    assert "hunter2" not in f"{invalid.value} {invalid.value.hint}"


def test_a_place_shows_no_key(bare: dict[str, str]) -> None:
    place = locate("s3://acme", {"access_key_id": "id", "secret_access_key": "hunter2"}, bare)
    assert "hunter2" not in f"{place} {place!r}"


def test_express_buckets_are_refused(bare: dict[str, str]) -> None:
    with pytest.raises(Unsupported):
        locate("s3://fast--use1-az4--x-s3/prod", None, bare)


def test_the_environment(bare: dict[str, str]) -> None:
    environ = {
        **bare,
        **PAIR,
        "AWS_SESSION_TOKEN": "token",
        "AWS_DEFAULT_REGION": "r1",
        "AWS_ENDPOINT_URL": "http://e1",
    }
    assert locate("s3://b", None, environ).options == {
        "access_key_id": "id",
        "secret_access_key": "secret",
        "session_token": "token",
        "region": "r1",
        "endpoint": "http://e1",
    }
    nearer = {**environ, "AWS_REGION": "r2", "AWS_ENDPOINT_URL_S3": "http://e2"}
    assert dict(locate("s3://b", None, nearer).options, session_token="") == {
        "access_key_id": "id",
        "secret_access_key": "secret",
        "session_token": "",
        "region": "r2",
        "endpoint": "http://e2",
    }


def test_query_beats_environment_and_options_beat_all(bare: dict[str, str]) -> None:
    environ = {**bare, **PAIR, "AWS_SESSION_TOKEN": "token", "AWS_REGION": "from-env"}
    assert locate("s3://b?region=from-url", None, environ).options["region"] == "from-url"
    mine = {"access_key_id": "my-id", "secret_access_key": "my-secret", "region": "mine"}
    assert locate("s3://b?region=from-url", mine, environ).options == mine


def test_aws_settings_do_not_leak_into_other_clouds(home: dict[str, str]) -> None:
    assert locate("gs://b", None, {**home, **PAIR, "AWS_ENDPOINT_URL": "http://e"}).options == {}


def test_profiles(home: dict[str, str]) -> None:
    default = locate("s3://b", None, home).options
    assert default == {"access_key_id": "default-id", "secret_access_key": "default-secret", "region": "eu-west-1"}
    assert locate("s3://b", None, {**home, "AWS_PROFILE": "work"}).options == {
        "access_key_id": "work-id",
        "secret_access_key": "work%secret",
        "session_token": "work-token",
        "region": "eu-central-1",
        "endpoint": "https://store.example",
    }


def test_keys_of_the_environment_are_not_mixed_with_a_profiles(home: dict[str, str]) -> None:
    options = locate("s3://b", None, {**home, **PAIR, "AWS_PROFILE": "work"}).options
    assert (options["access_key_id"], options.get("session_token")) == ("id", None)
    assert options["region"] == "eu-central-1"


@pytest.mark.parametrize("profile", ["nobody", "half"])
def test_profiles_that_make_no_sense(home: dict[str, str], profile: str) -> None:
    with pytest.raises(Invalid):
        locate("s3://b", None, {**home, "AWS_PROFILE": profile})


def test_a_settings_file_that_cannot_be_parsed(home: dict[str, str]) -> None:
    (Path(home["HOME"]) / ".aws" / "config").write_text("no section\n")
    with pytest.raises(Invalid) as invalid:
        locate("s3://b", None, home)
    assert len(str(invalid.value).splitlines()) == 1


@pytest.mark.parametrize("profile", ["single", "role"])
def test_profiles_without_keys_need_boto3(home: dict[str, str], profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = locate("s3://b", None, {**home, "AWS_PROFILE": profile})
    assert place.profile == profile
    for name, value in {**home, "AWS_PROFILE": profile}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(Unsupported) as unsupported:
        CloudStore("s3://b")
    assert "limpet[aws]" in unsupported.value.hint
    assert locate("s3://b", None, {**home, **PAIR, "AWS_PROFILE": profile}).profile is None


def test_a_profile_that_names_no_source_is_told_so(home: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    config = Path(home["HOME"]) / ".aws" / "config"
    config.write_text("[profile lost]\nrole_arn = arn:aws:iam::1:role/x\nsource_profile = nowhere\n")
    for name, value in {**home, "AWS_PROFILE": "lost", "AWS_CONFIG_FILE": str(config)}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Invalid, match="the AWS profile 'lost' gives no key"):
        CloudStore("s3://b")


@pytest.mark.parametrize("url", ["s3://acme/prod", "gs://acme/prod", "az://acme/prod?account=me"])
def test_the_clouds_own_servers_open_without_a_request(
    url: str, bare: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", bare["HOME"])
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    store = CloudStore(url)
    assert store.list_order == ("folders" if url.startswith("az") else "keys")


def test_an_option_that_the_client_does_not_know() -> None:
    with pytest.raises(Invalid) as invalid:
        CloudStore("s3://acme", options={"colour": "red"})
    assert len(str(invalid.value).splitlines()) == 1


@pytest.mark.parametrize(
    "endpoint", ["127.0.0.1:8333", "minio", "ftp://h", "http://", "http:///x", "http://a b", "http://h:x"]
)
@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "profile", "option"])
def test_an_endpoint_that_is_no_url_is_invalid(bare: dict[str, str], endpoint: str, variable: str) -> None:
    """B14: the client would panic, with 214 lines of Rust."""
    environ = {**bare, **PAIR}
    if variable == "profile":
        (Path(bare["HOME"]) / ".aws").mkdir()
        (Path(bare["HOME"]) / ".aws" / "config").write_text(f"[default]\nendpoint_url = {endpoint}\n")
    elif variable != "option":
        environ[variable] = endpoint
    with pytest.raises(Invalid, match="is not a URL") as invalid:
        locate("s3://acme", {"endpoint": endpoint} if variable == "option" else None, environ)
    assert "http://host:port" in invalid.value.hint
