"""Derives the options of a cloud client from a bucket's URL, the environment and the AWS profile.

Nothing here uses the network. The client finds what is not set here: web identity, container and instance roles on AWS,
application default credentials on Google Cloud, managed identity on Azure.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from limpet.kernel.errors import Invalid, Unsupported
from limpet.kernel.keys import check_prefix
from limpet.kernel.wording import an

QUERY = {"s3": ("endpoint", "region"), "gs": (), "az": ("endpoint", "account")}

_SOURCES = {
    "access_key_id": (("AWS_ACCESS_KEY_ID",), "aws_access_key_id"),
    "secret_access_key": (("AWS_SECRET_ACCESS_KEY",), "aws_secret_access_key"),
    "session_token": (("AWS_SESSION_TOKEN",), "aws_session_token"),
    "region": (("AWS_REGION", "AWS_DEFAULT_REGION"), "region"),
    "endpoint": (("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"), "endpoint_url"),
}
"""Of each option: the variables of the environment, and the setting of a profile."""
_SETTINGS_HINT = "correct the AWS settings file"
_KEYS = ("access_key_id", "secret_access_key", "session_token")
_NEEDS_BOTO3 = ("sso_session", "sso_start_url", "role_arn", "source_profile", "credential_process", "login_session")


@dataclass(frozen=True, slots=True)
class Place:
    """A prefix of a bucket, and how to reach it. `profile` is set when only boto3 can get its credentials."""

    scheme: str
    bucket: str
    prefix: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    profile: str | None = None

    @property
    def endpoint(self) -> str | None:
        """The server's address, when it is not the cloud's own."""
        return self.options.get("endpoint")

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")


def locate(url: str, options: Mapping[str, str] | None = None, environ: Mapping[str, str] = os.environ) -> Place:
    """The place that `url` names. Precedence: `options`, then the URL's query, the environment, the profile.

    Raises: Invalid for a URL or profile that is not valid; Unsupported for a kind of bucket that Limpet cannot use.
    """
    parts = urlsplit(url)
    if parts.scheme not in QUERY:
        raise Invalid(f"{url!r} is not a bucket's URL", hint="write s3://bucket/prefix, gs://... or az://...")
    if not parts.hostname or parts.username or parts.port or parts.fragment:
        what = f"{parts.scheme}://... must name a bucket and nothing else before the prefix"
        raise Invalid(what, hint=f"write {parts.scheme}://bucket/prefix")
    if parts.netloc.endswith("--x-s3"):
        what = "S3 Express buckets list in no order and cannot start a listing at a key"
        raise Unsupported(what, hint="use an ordinary S3 bucket")
    chosen = _query(parts.scheme, parts.query)
    found, profile = _aws(environ) if parts.scheme == "s3" else ({}, None)
    merged = {**found, **chosen, **(options or {})}
    if "endpoint" in merged:
        check_endpoint(merged["endpoint"])
    if "access_key_id" in (options or {}):
        profile = None
        merged = {name: value for name, value in merged.items() if name not in _KEYS or name in (options or {})}
    if parts.scheme == "s3" and (not merged.get("access_key_id")) != (not merged.get("secret_access_key")):
        raise Invalid("one half of the AWS key pair is missing", hint="set access key id and secret access key")
    return Place(parts.scheme, parts.netloc, check_prefix(unquote(parts.path).strip("/")), merged, profile)


def boto3_session(profile: str | None) -> Any:
    """A session of boto3, for credentials that only it can get: SSO, assumed roles, and those that it renews.

    Raises: Unsupported without boto3; Invalid for a profile that is not valid.
    """
    try:
        session = import_module("boto3").Session(profile_name=profile)
        session.get_credentials()
    except ModuleNotFoundError:
        whose = f"the AWS profile {profile!r} has no static keys" if profile else "no AWS key was found"
        raise Unsupported(whose, hint="pip install 'limpet[aws]' for SSO, assumed roles and other sources") from None
    except import_module("botocore.exceptions").BotoCoreError as error:
        raise Invalid(f"the AWS profile {profile or 'default'!r} gives no key: {error}", hint=_SETTINGS_HINT) from None
    return session


def _query(scheme: str, query: str) -> dict[str, str]:
    chosen = dict(parse_qsl(query, keep_blank_values=True))
    for name, value in chosen.items():
        if name not in QUERY[scheme] or not value:
            allowed = ", ".join(QUERY[scheme]) or "nothing"
            raise Invalid(f"{name}={value} in {an(scheme)}:// URL means nothing", hint=f"allowed after '?': {allowed}")
    if "account" in chosen:
        chosen["account_name"] = chosen.pop("account")
    return chosen


def check_endpoint(endpoint: str) -> None:
    """Refuse an address that is no URL, for which the client library panics.   Raises: Invalid."""
    try:
        parts = urlsplit(endpoint)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        fine = False
    if "@" in endpoint:
        hint = "requests are signed with the access key: leave them out"
        raise Invalid("the endpoint has a user or password, which clients of the catalog would be told", hint=hint)
    if not fine or not endpoint.isascii() or not endpoint.isprintable() or set(endpoint) & set(' "<>\\^`{|}'):
        hint = "write http://host:port or https://host in ?endpoint=, AWS_ENDPOINT_URL or the AWS profile"
        raise Invalid(f"the endpoint {endpoint!r} is not a URL", hint=hint)


def _aws(environ: Mapping[str, str]) -> tuple[dict[str, str], str | None]:
    """Options from the environment and the profile; the profile's name if its credentials need boto3."""
    found = {}
    for option, (variables, _) in _SOURCES.items():
        if value := next(filter(None, map(environ.get, variables)), None):
            found[option] = value
    name = environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE")
    profile = _profile(name or "default", environ)
    if name and not profile:
        hint = "see `aws configure list-profiles`, or unset AWS_PROFILE"
        raise Invalid(f"there is no AWS profile {name!r}", hint=hint)
    has_keys = "access_key_id" in found
    for option, (_, setting) in _SOURCES.items():
        if setting in profile and option not in found and not (has_keys and option in _KEYS):
            found[option] = profile[setting]
    ambient = has_keys or environ.get("AWS_WEB_IDENTITY_TOKEN_FILE")
    needs_boto3 = "access_key_id" not in found and not ambient and any(each in profile for each in _NEEDS_BOTO3)
    return found, (name or "default") if needs_boto3 else None


def _profile(name: str, environ: Mapping[str, str]) -> dict[str, str]:
    home = Path(environ.get("HOME") or Path.home()) / ".aws"
    section = name if name == "default" else f"profile {name}"
    config = _ini(environ.get("AWS_CONFIG_FILE") or home / "config", section)
    return {**config, **_ini(environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials", name)}


def _ini(path: str | Path, section: str) -> dict[str, str]:
    parser = configparser.RawConfigParser(default_section="-", strict=False)
    try:
        parser.read(Path(path).expanduser(), encoding="utf-8")
    except (configparser.Error, OSError, UnicodeDecodeError) as error:
        raise Invalid(f"{path} cannot be read: {str(error).splitlines()[0]}", hint=_SETTINGS_HINT) from None
    return dict(parser[section]) if parser.has_section(section) else {}
